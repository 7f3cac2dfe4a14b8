"""Which file system a store is on: this machine's, or an object storage, which is only read.

Reading order: roots, object_files.
"""
