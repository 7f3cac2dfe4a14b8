"""How it is measured: rounds in turn, this machine's limits, profiles."""
