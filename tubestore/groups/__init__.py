"""Groups of consumers that share partitions: assignment, membership, positions.

Reading order: assignment, membership, positions, positions_log, directory, settings,
member, outputs, feed, assigned, waiter, waiting, consumer, exchange, admin.
"""
