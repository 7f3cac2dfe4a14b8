"""What both stores are built on: files, kernels, syncs. It has no message format.

Reading order: layout, java_hash, kernels, paths, vfs, local_files, locks, group_commit,
memory_pool, state_file, trees, quarantine, trash, doors, old_paths.
"""
