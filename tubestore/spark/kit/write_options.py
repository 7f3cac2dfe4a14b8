"""Options of what is written into a store; read as those of `options.py`.

Nothing here imports Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tubestore.errors import InvalidName, InvalidOption
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record.names import check_topic_name
from tubestore.spark.kit.options import Option, boolean, count, local_path, parse, size, text
from tubestore.staging.job_files import check_job_id
from tubestore.staging.rejected import OPTION


def _job(value: str) -> str:
    try:
        return check_job_id(value)
    except InvalidName as error:
        raise ValueError(error.reason) from None


def _application(value: str) -> str:
    # A batch's number and its digits are added.
    if re.search(r":\d+$", value):
        raise ValueError("it must not end in a colon and a number")
    return _job(value)


def _topic(value: str) -> str:
    try:
        return check_topic_name(value)
    except InvalidName as error:
        raise ValueError(error.reason) from None


def _handover(value: str) -> str:
    if not os.path.isabs(value):
        raise ValueError("only `write` sets it")
    return value


#: Options of every sink.
SHARED = (
    Option("path", text, None, "Directory of the store, the same on every node."),
    Option("jobId", _job, None, "Names a batch's job: one that is there already does nothing."),
    Option(
        "txnAppId",
        _application,
        None,
        "A name that only one query, with one checkpoint, can have; another is refused.",
        "stream",
    ),
    Option("lockTimeoutMs", count, 60_000, "How long a commit waits for another writer."),
    Option("handover", _handover, None, "Set by `write`: where the sink leaves what tasks staged."),
    Option(OPTION, text, None, "Directory for rows that the store does not take; else they fail."),
)
WRITE_TABLE = (
    *SHARED,
    Option("topic", _topic, None, "Topic of all rows; without it the column `topic`."),
    Option("createTopics", boolean, True, "Make topics that are missing."),
    Option("numPartitions", count, 1, "Partitions (a shard) of a topic that is made, at least."),
    Option("numStores", count, 1, "Shards of a topic that is made, at least."),
    Option("segmentBytes", size, 1 << 30, "A data file is full at this size."),
    Option("maxMessageBytes", size, 1_058_816, "Largest message, its attributes included."),
)


#: Options of a query itself, which Spark hands on.
_OF_STREAMS = ("checkpointlocation", "queryname")


def parse_write(
    given: Mapping[str, str], table: Sequence[Option], *, stream: bool
) -> dict[str, Any]:
    """Read the options of a DataFrame's or a stream's writer; InvalidOption."""
    texts = {k: v for k, v in given.items() if k.lower() not in _OF_STREAMS}
    found = parse(texts, table, stream=stream)
    if stream and found["jobId"] is not None:
        raise InvalidOption("jobId", "a stream has txnAppId")
    if found[OPTION] is not None:
        found[OPTION] = _beside(found[OPTION], local_path(found["path"]))
    return found


def _beside(given: str, path: str) -> str:
    """Return a directory that is not in the store, as every process finds it; InvalidOption."""
    try:
        found = os.path.abspath(local_path(given))
    except InvalidOption as error:
        raise InvalidOption(OPTION, error.reason) from None
    # A link may lead into the store.
    for resolve in (os.path.abspath, os.path.realpath):
        place, root = resolve(found), resolve(path)
        if os.path.commonpath([place, root]) == root:
            reason = f"{given} is in the store: a directory of its own is needed"
            raise InvalidOption(OPTION, reason)
    there = found
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise InvalidOption(OPTION, f"{there} is not a directory")
    return found


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows become messages of a store, checked."""

    path: str
    topic: str | None
    job_id: str | None
    application: str | None
    create_topics: bool
    new_topics: TopicOptions
    lock_timeout_ms: int
    store: StoreOptions
    #: Where rows go that the store does not take; None: they fail the job.
    rejected_path: str | None
    #: The file that gets what tasks staged, for another process to publish.
    handover: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
        """Read the options of a DataFrame's or a stream's writer; InvalidOption."""
        found = parse_write(given, WRITE_TABLE, stream=stream)
        try:
            new_topics = TopicOptions(found["numPartitions"], found["numStores"])
        except ValueError as error:
            raise InvalidOption("numPartitions", str(error)) from None
        settings = StoreOptions(
            segment_size_bytes=found["segmentBytes"], payload_size_max=found["maxMessageBytes"]
        )
        return cls(
            local_path(found["path"]),
            found["topic"],
            found["jobId"],
            found["txnAppId"],
            found["createTopics"],
            new_topics,
            found["lockTimeoutMs"],
            settings,
            found[OPTION],
            found["handover"],
        )
