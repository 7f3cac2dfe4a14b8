"""What is asked of the layouts: a table of questions, and how a layout does the work."""
