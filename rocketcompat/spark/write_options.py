"""Options of what is written into a RocketMQ store; read as those of `options.py`.

Nothing here imports Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import writing_config
from rocketcompat.options import MessageStoreConfig
from rocketcompat.spark.options import LOG_TABLE
from tubestore.errors import InvalidMessage, InvalidOption
from tubestore.spark.kit.options import Option, count, local_path, one_of, size, text
from tubestore.spark.kit.write_options import SHARED, parse_write
from tubestore.staging.rejected import OPTION

#: What a store that is made gets, by RocketMQ's names; of one that is there its own count.
STORE_TABLE = (
    Option("mappedFileSizeCommitLog", size, None, "Of a store that is made: bytes of a log file."),
    Option("mappedFileSizeConsumeQueue", size, None, "The same: bytes of a queue's file."),
    Option("maxHashSlotNum", count, None, "Slots of an index file."),
    Option("maxIndexNum", count, None, "Items of an index file."),
    Option("compat", one_of("4.9.8", "5.3.3"), None, "The version to write as."),
    *LOG_TABLE,
)
WRITE_TABLE = (
    *SHARED,
    Option("topic", text, None, "Topic of all rows; without it the column `topic`."),
    Option("numQueues", count, 1, "Queues in which rows without `queue_id` take turns."),
    Option("maxMessageSize", count, None, "Bytes of the largest body."),
    *STORE_TABLE,
)


@dataclass(frozen=True, slots=True)
class RocketWriteOptions:
    """How rows become messages of a RocketMQ store, checked."""

    path: str
    topic: str | None
    job_id: str | None
    application: str | None
    queues: int
    lock_timeout_ms: int
    #: Options of the store that were given, by RocketMQ's names.
    store: tuple[tuple[str, Any], ...]
    #: Where rows go that the store does not take; None: they fail the job.
    rejected_path: str | None
    #: The file that gets what tasks staged, for another process to publish.
    handover: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, stream: bool = False) -> RocketWriteOptions:
        """Read the options of a DataFrame's or a stream's writer; InvalidOption."""
        found = parse_write(given, WRITE_TABLE, stream=stream)
        names = ("maxMessageSize", *(option.name for option in STORE_TABLE))
        return cls(
            local_path(found["path"]),
            found["topic"],
            found["jobId"],
            found["txnAppId"],
            found["numQueues"],
            found["lockTimeoutMs"],
            tuple((name, found[name]) for name in names if found[name] is not None),
            found[OPTION],
            found["handover"],
        )

    def config(self) -> MessageStoreConfig:
        """Return the options with which the store is written: its own, if it is there.

        InvalidOption for sizes that it does not have; NotAStore.
        """
        try:
            config = MessageStoreConfig.from_camel(dict(self.store))
            if any(map(os.path.isdir, config.commit_log_directories(self.path))):
                directory = StoreDirectory(self.path, dict(self.store))
                places = {option.name for option in LOG_TABLE}
                paths = {name: value for name, value in self.store if name in places}
                inferred = StoreDirectory(self.path, paths).inferred
                for name, value in self.store:
                    if inferred.get(name, value) != value:
                        raise InvalidOption(name, f"the store has {inferred[name]}")
                return writing_config(directory)
        except InvalidMessage as error:
            raise InvalidOption("path", str(error)) from None
        return config.changed(layouts=frozenset({"consume_queue", "index"}))
