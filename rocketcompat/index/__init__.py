"""Index files: keys to places in the log, built from it.

Reading order: items, slots, examine, index_file, index_service.
"""
