"""The one log that all messages are put into.

Reading order: walk, batch, misplaced, ending, reads, queue_offsets, refusals, appended,
commit_log, raw, copy.
"""
