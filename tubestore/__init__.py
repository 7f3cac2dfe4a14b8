"""An embedded message store for many partitions, in TubeMQ's file format."""
