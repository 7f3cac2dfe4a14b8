"""Per-topic tubestore shards, built from the log.

Reading order: record, follower, to_log, groups.
"""
