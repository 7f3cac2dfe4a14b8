"""RocketMQ's broker and its consumers in the process, without a network, over an open store.

Reading order: allocation, timers, sql92, pulling, tables, members, broker, process_queue,
rebalance, push, lite, transactions.
"""
