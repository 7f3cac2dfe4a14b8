"""One `MessageStore`: a write buffer over one shard's files.

Reading order: statistics, mem_store, write_buffer, compaction, durable_files, announcements,
message_store, unrecovered, reader, workers.
"""
