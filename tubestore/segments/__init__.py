"""One shard on disk: its files, their lookups, their recovery.

Reading order: segment, segment_list, digests, cache_formats, postings, summaries, lookup,
file_store, checkpoint, reconcile, lost_files, recovery, listing, shard_bytes, inspection.
"""
