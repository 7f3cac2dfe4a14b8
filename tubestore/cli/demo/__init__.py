"""`tubestore demo`.

Reading order: child, run.
"""
