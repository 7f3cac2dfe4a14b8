"""Replication under a simulated network and clock, with both sides killed at any point."""
