"""All topics of a root as one store.

Reading order: manager, engine, directory, context, opening, topic_shards, append, topic_reads,
leases, retention, housekeeping, topic, topics, shards, publish.
"""
