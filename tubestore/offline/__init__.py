"""Check, dump and repair: a root's files without opening the store.

Reading order: findings, bytes_read, own_files, digest_check, check, dump, sound_rows,
index_rebuild, shard_repair, own_repair, repair.
"""
