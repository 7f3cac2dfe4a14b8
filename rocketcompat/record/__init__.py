"""One record: its bytes, its message, its columns, its rows; touches no file.

Reading order: properties, fields, prepare, delays, codec, columns, verify, batches, copies, given,
encode, compression, arrow, rows, message_table.
"""
