"""Replication on the loopback: a master, its slaves, and what is measured of them."""
