"""Where a root is, which process writes it, and one sync for the files of many shards.

Reading order: roots, object_files, writer_lock, file_syncs.
"""
