"""Options of the source `rocketmq`: the common ones (`tubestore.spark.kit`) and those of a log.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocketcompat.inspect.directory import StoreDirectory
from tubestore.core.vfs import Vfs
from tubestore.spark.kit.options import (
    EARLIEST,
    LATEST,
    SHARED,
    Option,
    SharedOptions,
    ending,
    integers,
    one_of,
    parse,
    shared_fields,
    starting,
    text,
)

_OWN_SCHEMA = Option("schema", one_of("rocketmq", "kafka"), "rocketmq", "Columns: own, or Kafka's.")
#: Where the log lies, by RocketMQ's names.
LOG_TABLE = (
    Option("storePathCommitLog", text, None, "Directories of the log, if not `commitlog`."),
    Option("readOnlyCommitLogStorePaths", text, None, "Those of them that get no new files."),
    Option("multiPathSplitter", text, None, "The text between two directories, else a comma."),
)
TABLE = (
    *(_OWN_SCHEMA if option.name == "schema" else option for option in SHARED),
    Option("queues", integers, None, "Queue ids, such as `0,3,10-19`, of every topic."),
    Option("tags", text, None, "`A || B`: only messages with one of these tags."),
    Option("startingOffsets", starting, EARLIEST, '`earliest`, or `{"orders":{"0":100}}`.'),
    Option("endingOffsets", ending, LATEST, "`latest`, or offsets; the end is not included."),
    *LOG_TABLE,
)


@dataclass(frozen=True, slots=True)
class RocketOptions(SharedOptions):
    """What a batch or a stream over a RocketMQ store reads, checked."""

    queues: frozenset[int] | None = None
    tags: tuple[str, ...] | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    #: Options for the place of the log that were given, by RocketMQ's names.
    log_paths: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, str], *, stream: bool | None = False) -> RocketOptions:
        """Read the options of a DataFrame or a stream; InvalidOption for what cannot be used."""
        found = parse(given, TABLE, stream=stream)
        tags = found["tags"]
        return cls(
            **shared_fields(found, stream=stream),
            queues=found["queues"],
            tags=None if tags is None else tuple(t.strip() for t in tags.split("||") if t.strip()),
            begin_ms=found["startingTimestamp"],
            end_ms=found["endingTimestamp"],
            log_paths=tuple((o.name, found[o.name]) for o in LOG_TABLE if found[o.name]),
        )

    def directory(
        self, sizes: Mapping[str, Any] | None = None, vfs: Vfs | None = None
    ) -> StoreDirectory:
        """Open the store's directory; `sizes` are options of file sizes that are known."""
        return StoreDirectory(self.path, {**dict(self.log_paths), **(sizes or {})}, vfs)
