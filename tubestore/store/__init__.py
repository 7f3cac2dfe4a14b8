"""All topics of a root as one store.

Reading order: directory, topic_settings, topic_shards, topic_reads, topic, topics, many_topics,
publish, leases, retention, housekeeping, open_topics, bulk_loads, shards, manager.
"""
