"""The laboratory: the same work done by this store, by its rivals, and at the machine's limit.

`python -m bench` runs it; README.md says what is asked and how to read the answer.
"""
