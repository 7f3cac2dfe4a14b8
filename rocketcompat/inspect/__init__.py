"""A directory as it lies, without opening the store.

Reading order: log_files, directory, log_units, queue_units, comparison, batch_queues, queues,
index_geometry, derived, key_scan, selection, dump, decode, info, diff.
"""
