"""Ways to keep the messages of many partitions on a disk: ours, and those of rivals in Python."""

from bench.layouts.layout import Layout as Layout
from bench.layouts.layout import MappedSingleLog as MappedSingleLog
