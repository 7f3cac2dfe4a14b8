"""One write for a batch over many shards.

Reading order: root_journal, pending_batches, chosen_shards, journalled, redo, journal_overlay,
left_messages.
"""
