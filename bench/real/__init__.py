"""The real Java classes, driven over a pipe; tests use the same drivers."""
