"""Spark beside its bounds: `python -m bench.spark`."""
