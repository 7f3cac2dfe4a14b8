"""RocketMQ's replication: the protocol of master and slave, without sockets and with them.

Reading order: frames, states, slave, master, positions, rate, config, role, slave_store,
tls, mirror, server.
"""
