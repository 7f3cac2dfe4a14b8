"""One write for a batch over many shards, and a frame for each single message.

Reading order: root_journal, pending_batches, chosen_shards, journalled, redo, ring_frames,
ring_segment, early_writes, ring, topic_names, ring_pieces, ring_reading, lacking,
journal_overlay, left_messages.
"""
