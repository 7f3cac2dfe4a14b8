"""Options of the data sources: a table of names, kinds and meanings, checked before a job runs.

The names are Kafka's and Delta's where they have the option. Case does not matter (Spark hands
names on in lower case). A name that is not in the table is refused: a typo that is ignored
would give other rows than were asked for.

Nothing here imports Spark.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tubestore.clock import SystemClock
from tubestore.disks.roots import SCHEMES, is_object_root
from tubestore.errors import InvalidMessage, InvalidOption, listed
from tubestore.reading.sources import EVERYTHING, Filter, item_filter
from tubestore.record.layouts import key_code_of
from tubestore.spark.kit.pushdown import Bound, Pushable, Pushed, moment, whole, words
from tubestore.values import WHOLE_END, UsageMistake, age_text, parse_age, parse_time

EARLIEST, LATEST = -2, -1
_HADOOPS_S3 = re.compile(r"(s3[an])://(.*)", re.IGNORECASE)
_BYTES = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

#: Offsets by topic and partition id; EARLIEST and LATEST as in Kafka.
Offsets = Mapping[str, Mapping[int, int]]


class Option(NamedTuple):
    """One option: how its text is read, what it is without, and what it means."""

    name: str
    read: Callable[[str], Any]
    default: Any
    doc: str
    #: Where it is known: "read", "stream" (reads only).
    use: str = "read"


# -- how texts are read: each raises ValueError with what it wants --------------------------------


def text(value: str) -> str:
    """Take a text as it is; a blank one is none."""
    if not value.strip():
        raise ValueError("it is empty")
    return value


def boolean(value: str) -> bool:
    """Read true or false."""
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def count(value: str) -> int:
    """Read a whole number above 0."""
    text = value.strip()
    # Its length first: Python refuses to read thousands of digits.
    if not text.isdecimal() or len(text) > len(str(WHOLE_END)) or not 0 < int(text) < WHOLE_END:
        raise ValueError("a whole number above 0 and below 2**62")
    return int(text)


def size(value: str) -> int:
    """Read a number of bytes, with a unit or without.

    >>> size("128m"), size("4 MiB"), size("17")
    (134217728, 4194304, 17)
    """
    found = _BYTES.fullmatch(value.strip())
    if not found or not int(found[1]):
        raise ValueError("a number of bytes, such as 128m")
    return int(found[1]) << _UNITS[found[2].lower()]


def names(value: str) -> tuple[str, ...]:
    """Read texts separated by commas."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("names separated by commas")
    return found


def integers(value: str) -> frozenset[int]:
    """Read whole numbers and ranges of them.

    >>> sorted(integers("0-2, 7"))
    [0, 1, 2, 7]
    """
    found: set[int] = set()
    for part in names(value):
        matched = re.fullmatch(r"(-?\d+)(?:-(\d+))?", part)
        if not matched:
            raise ValueError("numbers separated by commas, such as 0,3,10-19")
        first = int(matched[1])
        last = int(matched[2]) if matched[2] else first
        if last < first or last - first >= 1_000_000:
            raise ValueError(f"{part} is not a range")
        found.update(range(first, last + 1))
    return frozenset(found)


def pattern(value: str) -> str:
    """Check a regular expression; it has to match a whole name."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression: {error}") from None
    return value


def time(value: str) -> int:
    """Read a time as ms since the epoch."""
    try:
        return parse_time(value.strip(), SystemClock().now_ms())
    except UsageMistake as mistake:
        raise ValueError(str(mistake)) from None


def notes(value: str) -> str:
    """Check where a DataFrame keeps what it pushed down."""
    if not os.path.isabs(value):
        raise ValueError("only a DataFrame of `read` pushes down: read(…, pushdown=True)")
    return value


def _object(value: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"JSON such as {example}")
    return found


def assignment(value: str) -> Mapping[str, tuple[int, ...]]:
    """Read partitions by topic, as Kafka writes them."""
    example = '{"orders":[0,1]}'
    found = _object(value, example)
    for ids in found.values():
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise ValueError(f"JSON such as {example}")
    return {topic: tuple(ids) for topic, ids in found.items()}


def offsets(value: str) -> Offsets:
    """Read offsets by topic and partition, as Kafka writes them: -2 is earliest, -1 latest."""
    example = '{"orders":{"0":2800,"1":-2}}'
    found = _object(value, example)
    try:
        return {
            topic: {int(p): _offset(o) for p, o in places.items()}
            for topic, places in found.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"JSON such as {example}") from None


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError
    return value


def starting(value: str) -> int | Offsets:
    """Read where to start: earliest, latest (streams), or offsets."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    return words[value.lower()] if value.lower() in words else offsets(value)


def ending(value: str) -> int | Offsets:
    """Read where to end: latest, or offsets."""
    if value.lower() == "latest":
        return LATEST
    if value.lower() == "earliest":
        raise ValueError("latest, or offsets as JSON")
    found = offsets(value)
    if any(o == EARLIEST for places in found.values() for o in places.values()):
        raise ValueError("-2 (earliest) is not an end")
    return found


def offset_times(value: str) -> Offsets:
    """Read times by topic and partition, as Kafka writes them: ms, or what `time` reads."""
    example = '{"orders":{"0":1700000000000}}'
    found = _object(value, example)
    try:
        return {t: {int(p): time(str(at)) for p, at in ps.items()} for t, ps in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"JSON such as {example}, times in ms or as texts") from None


def duration(value: str) -> int:
    """Read how long: ms of a number with a unit.

    >>> duration("15m"), duration("500ms")
    (900000, 500)
    """
    try:
        return parse_age(value)
    except InvalidMessage:
        raise ValueError("a number with a unit, such as 30s or 15m") from None


def one_of(*words: str) -> Callable[[str], str]:
    """Read one of some words."""

    def read(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(" or ".join(words))
        return value.lower()

    return read


# -- the table ------------------------------------------------------------------------------------

SHARED = (
    Option("path", text, None, "Directory of the store, the same on every node, or `s3://…`."),
    Option("schema", one_of("tubestore", "kafka"), "tubestore", "Columns: our own, or Kafka's."),
    Option("subscribe", names, None, "Topics, separated by commas; without one: all topics."),
    Option("subscribePattern", pattern, None, "A regular expression that a whole name matches."),
    Option("startingTimestamp", time, None, "Only what was received at or after this time."),
    Option("endingTimestamp", time, None, "Only what was received before this time."),
    Option("maxSplitBytes", size, 128 << 20, "Bytes of log that one task reads."),
    Option("minPartitions", count, 1, "At least so many splits, if there is enough to read."),
    Option(
        "failOnCorrupt", boolean, True, "Fail at damage; false: rows with the damage as `state`."
    ),
    Option("verifyCrc", boolean, False, "Compare the checksum of every message."),
    Option(
        "failOnDataLoss",
        boolean,
        True,
        "Fail where what is wanted was removed, its topic made again, or the journal damaged.",
    ),
    Option("pushdown", notes, None, "Set by `read`: where it keeps what a DataFrame pushed down."),
    Option("maxOffsetsPerTrigger", count, None, "Messages of a micro-batch.", "stream"),
    Option("maxBytesPerTrigger", size, None, "Bytes of a micro-batch.", "stream"),
    Option(
        "minOffsetsPerTrigger", count, None, "A micro-batch waits for so many messages.", "stream"
    ),
    Option("maxTriggerDelay", duration, 900_000, "But no longer than this.", "stream"),
    Option("includeHeaders", boolean, True, "With the column of attributes (properties, headers)."),
)

TABLE = (
    *SHARED,
    Option("assign", assignment, None, 'Partitions by topic: `{"orders":[0,1]}`.'),
    Option("partitions", integers, None, "Partition ids, such as `0,3,10-19`, of every topic."),
    Option("filterItems", names, None, "Filter items, separated by commas."),
    Option("keyCodes", integers, None, "Key codes (hashes of filter items)."),
    Option("startingOffsets", starting, EARLIEST, '`earliest`, or `{"orders":{"0":2800,"1":-2}}`.'),
    Option("endingOffsets", ending, LATEST, "`latest`, or offsets; the end is not included."),
    Option(
        "startingOffsetsByTimestamp",
        offset_times,
        None,
        'From the first message of a time or later on: `{"orders":{"0":1700000000000}}`.',
    ),
    Option(
        "endingOffsetsByTimestamp",
        offset_times,
        None,
        "Up to the first message of a time or later.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        one_of("error", "latest"),
        "error",
        "Without a message of that time or later: fail, or start at the end.",
    ),
)

#: At most one of each group may be given.
ALTERNATIVES = (
    ("subscribe", "subscribePattern", "assign"),
    ("assign", "partitions"),
    ("filterItems", "keyCodes"),
    ("startingOffsets", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingOffsetsByTimestamp"),
)
#: Options of the same kind, where the second is not below the first.
_BEGINS_AND_ENDS = (
    ("startingOffsets", "endingOffsets"),
    ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
)
#: What Spark's catalog adds to the options of a table (`TableCatalog.PROP_…`), and the beginning
#: of the second name that each option has there.
_OF_CATALOG = frozenset(
    ("collation", "comment", "external", "is_managed_location", "location", "owner", "provider")
)
_SECOND_NAME = "option."
#: What a stream has no use for: it has no end.
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def parse(
    given: Mapping[str, str], table: Iterable[Option] = TABLE, *, stream: bool | None = False
) -> dict[str, Any]:
    """Return the value of every option of the table, by its name there; InvalidOption.

    `stream` None: it is not known yet what the options are for.
    """
    options = {o.name.lower(): o for o in table}
    found: dict[str, Any] = {o.name: o.default for o in options.values()}
    present = set()
    for key, value in given.items():
        option = options.get(key.lower())
        if option is None and (key.lower() in _OF_CATALOG or key.lower().startswith(_SECOND_NAME)):
            continue
        if option is None:
            raise InvalidOption(key, _unknown(key, options))
        if option.use == "stream" and stream is False:
            raise InvalidOption(option.name, "only a stream has it")
        if stream and option.name in _BATCH_ONLY:
            raise InvalidOption(option.name, "a stream has no end")
        try:
            found[option.name] = option.read(str(value))
        except ValueError as error:
            raise InvalidOption(option.name, f"{value!r}: {error}") from None
        present.add(option.name)
    for group in ALTERNATIVES:
        both = [name for name in group if name in present]
        if len(both) > 1:
            raise InvalidOption(both[1], f"not together with {both[0]}")
    _refuse_contradictions(found)
    return found


def _refuse_contradictions(found: Mapping[str, Any]) -> None:
    """Raise InvalidOption for bounds between which there can be nothing."""
    least, most = found.get("minOffsetsPerTrigger"), found.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        reason = f"{least} is above maxOffsetsPerTrigger ({most})"
        raise InvalidOption("minOffsetsPerTrigger", reason)
    since, until = found.get("startingTimestamp"), found.get("endingTimestamp")
    if since is not None and until is not None and until < since:
        raise InvalidOption("endingTimestamp", "it is before startingTimestamp")
    for first, last in _BEGINS_AND_ENDS:
        starts, ends = found.get(first), found.get(last)
        if not isinstance(starts, Mapping) or not isinstance(ends, Mapping):
            continue
        for topic, places in ends.items():
            for partition, end in places.items():
                start = starts.get(topic, {}).get(partition, EARLIEST)
                if end != LATEST and end < start:
                    where = f"{topic} partition {partition}"
                    raise InvalidOption(last, f"{where} ends at {end}, before it starts ({start})")


def _unknown(key: str, options: Mapping[str, Option]) -> str:
    if key.lower() == "paths":
        return "one path, not several"
    near = difflib.get_close_matches(key.lower(), options, 1)
    if near:
        return f"not known; did you mean {options[near[0]].name}?"
    return f"not known; there are {', '.join(o.name for o in options.values())}"


def local_path(path: str | None) -> str:
    """Return the directory of an option `path`; InvalidOption for what is no path of a file."""
    return _path(path, "only a directory that every node can see")


def _path(path: str | None, wanted: str) -> str:
    if path is None:
        raise InvalidOption(
            "path",
            "missing: .load('/path/of/the/store'); for a table WITH (path = '…') behind its name, "
            "since Spark's PythonTable hands over no options of tables; CREATE TABLE … AS SELECT "
            "cannot name one: create the table, then INSERT INTO … WITH (path = '…')",
        )
    if path.startswith("file:"):
        return re.sub("^file:(//)?", "", path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise InvalidOption("path", f"{path}: {wanted}")
    return path


def readable_path(path: str | None, *, stream: bool | None) -> str:
    """As `local_path`; a batch also reads a copy in an object storage."""
    if stream:
        return _path(path, "a stream needs a directory that every node can see, for its lease")
    if path is None or not is_object_root(path):
        hadoops = _HADOOPS_S3.match(path or "")
        if hadoops:
            text = f"{hadoops[1]} is Hadoop's name: give s3://{hadoops[2]} (read by pyarrow.fs)"
            return _path(path, text)
        names = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        text = "only a directory that every node can see, or for a batch a copy in an object "
        return _path(path, f"{text}storage ({names})")
    return path


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What is read of a store of any format, checked."""

    path: str
    shape: str = "tubestore"
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    max_split_bytes: int = 128 << 20
    min_partitions: int = 1
    fail_on_corrupt: bool = True
    verify_crc: bool = False
    fail_on_data_loss: bool = True
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_delay_ms: int = 900_000
    include_headers: bool = True
    #: Where a DataFrame keeps what it pushed down; None: nothing is pushed down.
    pushes: str | None = None
    pushed: Pushed = field(default_factory=Pushed)
    #: Topics may come later.
    stream: bool = False

    def wants_topic(self, topic: str) -> bool:
        """True if a topic is read."""
        if self.topics is not None:
            return topic in self.topics
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None

    def check_pattern(self, topics: Iterable[str]) -> None:
        """Raise InvalidOption for a pattern that matches no topic; a stream's may come later."""
        there = sorted(topics)
        if self.topic_pattern is None or self.stream or any(map(self.wants_topic, there)):
            return
        reason = f"{self.topic_pattern!r} matches no topic; there are: {listed(there) or 'none'}"
        raise InvalidOption("subscribePattern", reason)


def shared_fields(found: Mapping[str, Any], *, stream: bool | None) -> dict[str, Any]:
    """Return the fields of `SharedOptions` from what `parse` found; InvalidOption."""
    if found["startingOffsets"] == LATEST and stream is False:
        raise InvalidOption("startingOffsets", "latest: a batch starts at earliest or offsets")
    return {
        "path": readable_path(found["path"], stream=stream),
        "shape": found["schema"],
        "topics": found["subscribe"],
        "topic_pattern": found["subscribePattern"],
        "starting": found["startingOffsets"],
        "ending": found["endingOffsets"],
        "max_split_bytes": found["maxSplitBytes"],
        "min_partitions": found["minPartitions"],
        "fail_on_corrupt": found["failOnCorrupt"],
        "verify_crc": found["verifyCrc"],
        "fail_on_data_loss": found["failOnDataLoss"],
        "max_rows_per_trigger": found["maxOffsetsPerTrigger"],
        "max_bytes_per_trigger": found["maxBytesPerTrigger"],
        "min_rows_per_trigger": found["minOffsetsPerTrigger"],
        "max_delay_ms": found["maxTriggerDelay"],
        "include_headers": found["includeHeaders"],
        "pushes": found["pushdown"],
        "stream": stream is not False,
    }


#: What a `where` over a tube store is pushed down of.
PUSHABLE = {
    "topic": Pushable(words, sets=True),
    "partition": Pushable(whole, sets=True, ordered=True),
    "offset": Pushable(whole, ordered=True),
    "received_time": Pushable(moment, ordered=True, column="received_time_ms"),
    "received_time_ms": Pushable(whole, ordered=True),
    "key_code": Pushable(whole, sets=True),
    # Items of the same hash are read, too, and blanks around an item do not count.
    "filter_item": Pushable(words, sets=True, exact=False),
}


@dataclass(frozen=True, slots=True)
class ReadOptions(SharedOptions):
    """What a batch or a stream reads, checked."""

    assigned: Mapping[str, tuple[int, ...]] | None = None
    partitions: frozenset[int] | None = None
    filter: Filter = EVERYTHING
    starting_times: Offsets = field(default_factory=dict)
    ending_times: Offsets = field(default_factory=dict)
    #: A partition without a message of its starting time or later is an error.
    strict_times: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
        """Read the options of a DataFrame or a stream; InvalidOption for what cannot be used."""
        found = parse(given, stream=stream)
        times = found["startingTimestamp"], found["endingTimestamp"]
        wanted = item_filter(found["filterItems"], *times)
        if found["keyCodes"] is not None:
            wanted = Filter(found["keyCodes"], *times)
        return cls(
            **shared_fields(found, stream=stream),
            assigned=found["assign"],
            partitions=found["partitions"],
            filter=wanted,
            starting_times=found["startingOffsetsByTimestamp"] or {},
            ending_times=found["endingOffsetsByTimestamp"] or {},
            strict_times=found["startingOffsetsByTimestampStrategy"] == "error",
        )

    def wants_topic(self, topic: str) -> bool:
        """True if a topic is read."""
        if self.assigned is not None:
            return topic in self.assigned
        return SharedOptions.wants_topic(self, topic)  # with slots, super() is of another class

    def narrow(self, pushed: Pushed) -> ReadOptions:
        """Return the options with what was pushed down."""
        given, items = self.filter, pushed.of("filter_item").among
        times = Bound(None, given.start_ms, given.end_ms).both(pushed.of("received_time_ms"))
        codes = Bound(given.key_codes).both(Bound(pushed.of("key_code").among))
        if items is not None:
            codes = codes.both(Bound(frozenset(map(key_code_of, items))))
        wanted = Filter(codes.among, times.low, times.high, given.items)
        return replace(self, pushed=pushed, filter=wanted)

    def named_topics(self) -> tuple[str, ...]:
        """Return the topics that were named, all of which have to be there."""
        return tuple(self.assigned) if self.assigned is not None else self.topics or ()

    @property
    def names_any(self) -> bool:
        """True if an option names topics or partitions, which have to be there."""
        places = (self.starting, self.ending, self.starting_times, self.ending_times)
        return bool(
            self.named_topics()
            or self.topic_pattern is not None
            or self.partitions is not None
            or any(isinstance(given, Mapping) and given for given in places)
        )

    def partitions_of(self, topic: str) -> frozenset[int] | None:
        """Return the partition ids of a topic that are read, None for all."""
        if self.assigned is not None:
            return frozenset(self.assigned[topic])
        return self.partitions


def markdown(table: Iterable[Option]) -> str:
    """Return the table of options for the documentation."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in table:
        where = " (streams)" if option.use == "stream" else ""
        rows.append(f"| `{option.name}` | {_shown(option)} | {option.doc}{where} |")
    return "\n".join(rows)


def _shown(option: Option) -> str:
    if option.default is None:
        return ""
    if option.read is size and option.default % (1 << 20) == 0:
        return f"`{option.default >> 20}m`"
    if option.read is duration:
        return f"`{age_text(option.default)}`"
    if option.name.endswith("Offsets"):
        return "`earliest`" if option.default == EARLIEST else "`latest`"
    return f"`{str(option.default).lower()}`"
