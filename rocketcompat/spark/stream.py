"""A RocketMQ store as a stream: the log is one sequence, so a position is one physical offset.

{"v": 1, "store": "<uuid or null>", "log": <physical offset>}
"""

from __future__ import annotations

from functools import partial

from rocketcompat.spark.log_batches import LogBatches
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.reading import LogReading
from tubestore.spark.kit.tasks import note
from tubestore.spark.kit.triggers import TriggeredReader


def stream_reader(options: RocketOptions, reading: LogReading) -> TriggeredReader:
    """Return what reads a store as a stream."""
    return TriggeredReader(options, reading, partial(LogBatches, options, note=note))
