"""Which entries a read wants, and their messages.

Reading order: entry_rows, entry_sources, selection, selection_many, positions, view, tubemq_reads.
"""
