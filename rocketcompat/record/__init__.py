"""One record: its bytes, its message, its columns, its rows; touches no file.

Reading order: properties, prepare, codec, columns, verify, inner_batches, batches, copies, given,
encode, compression, arrow, rows, message_table.
"""
