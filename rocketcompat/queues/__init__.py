"""Consume queues: units that point into the log, built from it.

Reading order: units, extension, consume_queue, batch_consume_queue, follower, batch_table,
recovery, table.
"""
