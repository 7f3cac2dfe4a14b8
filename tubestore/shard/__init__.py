"""One `MessageStore`: two buffers over one shard's files.

Reading order: mem_store, shard_sync, double_buffer, adoption, journalled_shard, message_store,
reader, workers.
"""
