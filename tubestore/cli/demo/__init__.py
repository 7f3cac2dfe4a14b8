"""`tubestore demo`.

Reading order: parts, child, run.
"""
