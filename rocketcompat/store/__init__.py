"""The store: opening, puts, reads, background services, closing.

Reading order: structures, parts, recovery, opening_to_read, opening, puts, put_status, flush,
cleaning, clean_service, service_thread, schedule, stats, reader, default_message_store.
"""
