"""A directory as it lies, without opening the store.

Reading order: log_files, directory, scan, log_units, queues, batch_queues, index_geometry,
derived, key_scan, selection, dump, tail, decode, info, diff.
"""
