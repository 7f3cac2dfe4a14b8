"""The broker in the process: random groups, delayed messages, killed processes."""
