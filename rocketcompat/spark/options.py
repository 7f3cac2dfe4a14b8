"""Options of the source `rocketmq`: the common ones (`tubestore.spark.kit`) and those of a log.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from tubestore.spark.kit.pushdown import Bound, Pushable, Pushed, moment, whole, words

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


#: What a `where` over a log is pushed down of.
PUSHABLE = {
    "topic": Pushable(words, sets=True),
    "queue_id": Pushable(whole, sets=True, ordered=True),
    "queue_offset": Pushable(whole, ordered=True),
    "born_timestamp": Pushable(whole, ordered=True),
    "store_timestamp": Pushable(whole, ordered=True),
    "store_time": Pushable(moment, ordered=True, column="store_timestamp"),
    # Compared as bytes, which need not be text.
    "tags": Pushable(words, sets=True, exact=False),
    "keys": Pushable(words, sets=True, exact=False),
}


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

    def narrow(self, pushed: Pushed) -> RocketOptions:
        """Return the options with what was pushed down."""
        times = Bound(None, self.begin_ms, self.end_ms).both(pushed.of("store_timestamp"))
        return replace(self, pushed=pushed, begin_ms=times.low, end_ms=times.high)

    def directory(
        self, sizes: Mapping[str, Any] | None = None, vfs: Vfs | None = None
    ) -> StoreDirectory:
        """Open the store's directory; `sizes` are options of file sizes that are known."""
        return StoreDirectory(self.path, {**dict(self.log_paths), **(sizes or {})}, vfs)
