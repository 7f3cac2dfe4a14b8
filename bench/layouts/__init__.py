"""Ways to keep the messages of many partitions on a disk: this store and its Python rivals."""

from bench.layouts.layout import Layout as Layout
from bench.layouts.layout import MappedSingleLog as MappedSingleLog
