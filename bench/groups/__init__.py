"""Groups of consumers: latency, throughput, rebalance, commits and exactly once, on the clock."""
