"""TubeMQ's records as bytes and as Arrow columns; touches no file.

Reading order: layouts, names, attributes, records, search, ingest, columns, decode, locate,
payloads, evidence, state_files.
"""
