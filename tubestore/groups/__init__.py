"""Groups of consumers that share partitions: assignment, membership, positions.

Reading order: assignment, membership, positions, positions_log, directory, settings,
member, outputs, feed, assigned, waiting, consumer, exchange, admin.
"""
