"""Consume queues: units that point into the log, built from it.

Reading order: units, files, extension, consume_queue, batch_consume_queue, recovery, table,
proof.
"""
