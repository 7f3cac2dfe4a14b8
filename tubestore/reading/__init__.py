"""Which entries a read wants, and their messages.

Reading order: sources, selection, positions, view, tubemq_reads.
"""
