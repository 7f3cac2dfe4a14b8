"""Options of the source `rocketmq`: those of `tubestore.spark.options`, and what a log has besides.

Nothing here imports Spark.

Next to read: `planning.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tubestore.errors import InvalidOption
from tubestore.spark.options import (
    EARLIEST,
    LATEST,
    SHARED,
    Offsets,
    Option,
    ending,
    integers,
    local_path,
    one_of,
    parse,
    starting,
    text,
)

_OWN_SCHEMA = Option("schema", one_of("rocketmq", "kafka"), "rocketmq", "Columns: own, or Kafka's.")
TABLE = (
    *(_OWN_SCHEMA if option.name == "schema" else option for option in SHARED),
    Option("queues", integers, None, "Queue ids, such as `0,3,10-19`, of every topic."),
    Option("tags", text, None, "`A || B`: only messages with one of these tags."),
    Option("startingOffsets", starting, EARLIEST, '`earliest`, or `{"orders":{"0":100}}`.'),
    Option("endingOffsets", ending, LATEST, "`latest`, or offsets; the end is not included."),
)


@dataclass(frozen=True, slots=True)
class RocketOptions:
    """What a batch or a stream over a RocketMQ store reads, checked."""

    path: str
    shape: str
    topics: tuple[str, ...] | None
    topic_pattern: str | None
    queues: frozenset[int] | None
    tags: tuple[str, ...] | None
    starting: int | Offsets
    ending: int | Offsets
    begin_ms: int | None
    end_ms: int | None
    max_split_bytes: int
    min_partitions: int
    fail_on_corrupt: bool
    verify_crc: bool
    fail_on_data_loss: bool
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, stream: bool | None = False) -> RocketOptions:
        """Read the options of a DataFrame or a stream; InvalidOption for what cannot be used."""
        found = parse(given, TABLE, stream=stream)
        if found["startingOffsets"] == LATEST and stream is False:
            raise InvalidOption("startingOffsets", "latest: a batch starts at earliest or offsets")
        tags = found["tags"]
        return cls(
            path=local_path(found["path"]),
            shape=found["schema"],
            topics=found["subscribe"],
            topic_pattern=found["subscribePattern"],
            queues=found["queues"],
            tags=None if tags is None else tuple(t.strip() for t in tags.split("||") if t.strip()),
            starting=found["startingOffsets"],
            ending=found["endingOffsets"],
            begin_ms=found["startingTimestamp"],
            end_ms=found["endingTimestamp"],
            max_split_bytes=found["maxSplitBytes"],
            min_partitions=found["minPartitions"],
            fail_on_corrupt=found["failOnCorrupt"],
            verify_crc=found["verifyCrc"],
            fail_on_data_loss=found["failOnDataLoss"],
            max_rows_per_trigger=found["maxOffsetsPerTrigger"],
            max_bytes_per_trigger=found["maxBytesPerTrigger"],
        )

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is read."""
        if self.topics is not None:
            return topic in self.topics
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None
