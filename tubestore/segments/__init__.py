"""One shard on disk: its files, their lookups, their recovery.

Reading order: trash, segment, segment_list, digests, cache_formats, postings, times,
partition_totals, index_caches, lookup, file_store, checkpoint, lost_files, reconcile, recovery,
removal, listing, shard_bytes, verdicts, inspection.
"""
