"""The laboratory: the same work done by this store, by its rivals, and at the machine's limit.

`python -m bench` runs it; README.md has the questions and how to read the answers.
"""
