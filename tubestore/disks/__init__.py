"""Where a root is, this machine's disk or an object storage to read, and which process writes it.

Reading order: roots, object_files, writer_lock.
"""
