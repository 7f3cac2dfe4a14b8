"""Messages out of a store, into one, and into another form.

Reading order: files, exchange, copying, convert.
"""
