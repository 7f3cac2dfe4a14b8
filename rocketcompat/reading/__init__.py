"""Reads of a live store and of a directory alike.

Reading order: parts, pull, keys, choice, columns, again, times.
"""
