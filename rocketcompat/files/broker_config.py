"""A broker's `config/*.json`, read and written in the form of RocketMQ's files.

They are fastjson's: one tab a level, bean fields in alphabetical order, nulls left out, and maps
with numbers as keys on one line with the keys bare, which is not JSON. RocketMQ reads what is
written here. What it wrote is read here, and so is a file with comments that was edited by hand.

A broker may be killed between two steps of writing a file, and then only `.bak` is good. A file
that is missing, empty or unreadable is read from there (as `ConfigManager.load` does). Here a file
is replaced whole, after its old content was put into `.bak`.

A table with rows or values of another type than RocketMQ's is unreadable too, and is never written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, CONFIG_DIRECTORY
from rocketcompat.options import MessageStoreConfig
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName
from tubestore.values import whole_number

TOPICS_FILE = "topics.json"
CONSUMER_OFFSET_FILE = "consumerOffset.json"
DELAY_OFFSET_FILE = "delayOffset.json"
SUBSCRIPTION_GROUP_FILE = "subscriptionGroup.json"
REQUEST_MODE_FILE = "messageRequestMode.json"
_BACKUP = ".bak"
#: Java's int, which queues are, and its long, which offsets are.
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
#: Fields of a row that are longs.
_LONGS = frozenset({"broker_id", "which_broker_when_consume_slowly"})
_WHOLE = re.compile(r"-?[0-9]+")
#: JSON5 is parsed at some 30 characters a millisecond; a longer file has to be JSON.
_BY_HAND_MAX = 1 << 16
#: The attribute of a topic of batches.
_QUEUE_TYPE, _BATCH_TYPE = "queue.type", "BatchCQ"
#: A text, which is left as it is, or a number as a key.
_TEXT_OR_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,])(\s*)(-?\d+)(\s*:)')


def loads(text: str) -> Any:
    """Return the content of fastjson's text; numbers as keys become texts, as in JSON.

    >>> loads('{"offsetTable":{1:7,2:4\\n\\t}}')
    {'offsetTable': {'1': 7, '2': 4}}
    """
    quoted = _TEXT_OR_BARE_KEY.sub(lambda m: m[1] or f'{m[2]}"{m[3]}"{m[4]}', text)
    try:
        return json.loads(quoted)
    except ValueError as error:
        if len(quoted) > _BY_HAND_MAX:
            text = (
                f"it is not JSON, and too long for what is read of a file edited by hand: {error}"
            )
            raise ValueError(text) from None
        import json5  # needed only for such a file

        return json5.loads(quoted)


def dumps(content: Any, level: int = 0) -> str:
    """Return content as fastjson writes it: a map with int keys is on one line.

    >>> print(dumps({"offsetTable": {"T@g": {0: 250, 1: 3}}}).replace("\\t", "    "))
    {
        "offsetTable":{
            "T@g":{0:250,1:3
            }
        }
    }
    """
    if isinstance(content, Mapping):
        return _map_text(content, level)
    if isinstance(content, list | tuple):
        inner = ",".join(f"\n{_tabs(level + 1)}{dumps(item, level + 1)}" for item in content)
        return f"[{inner}\n{_tabs(level)}]" if content else "[]"
    return json.dumps(content, ensure_ascii=False)


def _map_text(content: Mapping[Any, Any], level: int) -> str:
    if not content:
        return "{}"
    if all(isinstance(key, int) for key in content):
        pairs = ",".join(f"{key}:{dumps(value, level + 1)}" for key, value in content.items())
        return f"{{{pairs}\n{_tabs(level)}}}"
    rows = [
        f"\n{_tabs(level + 1)}{json.dumps(key, ensure_ascii=False)}:{dumps(value, level + 1)}"
        for key, value in content.items()
        if value is not None
    ]
    return "{" + ",".join(rows) + f"\n{_tabs(level)}}}"


def _tabs(level: int) -> str:
    return "\t" * level


@dataclass(slots=True)
class TopicConfig:
    """A row of topics.json; `perm` is 2 to write, 4 to read."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = 6
    order: bool = False
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    #: 5.x; "queue.type" is "SimpleCQ" or "BatchCQ".
    attributes: dict[str, str] | None = None
    #: Fields that this class does not have, by their names in the file; they are written back.
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SubscriptionGroupConfig:
    """A row of subscriptionGroup.json."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    #: As in `TopicConfig`: newer versions have more.
    others: dict[str, Any] = field(default_factory=dict)


class BrokerConfig:
    """The files below `<root>/config`. Readers need no lock; one process writes."""

    def __init__(self, vfs: Vfs, root: str, *, compat: str = "4.9.8") -> None:
        self._vfs, self._compat = vfs, compat
        self.directory = os.path.join(root, CONFIG_DIRECTORY)

    def topics(self) -> dict[str, TopicConfig]:
        """Return the topics by name; none without the file."""
        return _topics(self.read(TOPICS_FILE))

    def save_topics(self, topics: Mapping[str, TopicConfig], now_ms: int) -> None:
        """Replace the topics."""
        table = {name: _bean(topic) for name, topic in topics.items()}
        self._save(TOPICS_FILE, "topicConfigTable", table, now_ms, versioned=True)

    def consumer_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return the next queue offset to consume by (topic, group) and queue id."""
        return _consumer_offsets(self.read(CONSUMER_OFFSET_FILE))

    def save_consumer_offsets(
        self, offsets: Mapping[tuple[str, str], Mapping[int, int]], now_ms: int
    ) -> None:
        """Replace the consumers' offsets."""
        table = {f"{topic}@{group}": dict(row) for (topic, group), row in offsets.items()}
        self._save(CONSUMER_OFFSET_FILE, "offsetTable", table, now_ms)

    def delay_offsets(self) -> dict[int, int]:
        """Return the next unit to deliver by delay level."""
        return _by_number(self.read(DELAY_OFFSET_FILE), "offsetTable")

    def save_delay_offsets(self, offsets: Mapping[int, int], now_ms: int) -> None:
        """Replace the delay levels' offsets."""
        self._save(DELAY_OFFSET_FILE, "offsetTable", dict(sorted(offsets.items())), now_ms)

    def subscription_groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the groups by name."""
        return _groups(self.read(SUBSCRIPTION_GROUP_FILE))

    def save_subscription_groups(
        self, groups: Mapping[str, SubscriptionGroupConfig], now_ms: int
    ) -> None:
        """Replace the groups."""
        table = {name: _bean(group) for name, group in groups.items()}
        name = SUBSCRIPTION_GROUP_FILE
        self._save(name, "subscriptionGroupTable", table, now_ms, versioned=True)

    def pop_groups(self) -> set[tuple[str, str]]:
        """Return the (topic, group) pairs that consume by pop, as a broker of 5.x has them."""
        return _pop_groups(self.read(REQUEST_MODE_FILE))

    def read(self, name: str) -> dict[str, Any]:
        """Return a file's content, or its backup's if it is not whole; {} without either.

        Raises CorruptRecord if there is one and none can be read.
        """
        found = self._whole(name)
        return {} if found is None else found[1]

    def raw(self, name: str) -> bytes | None:
        """Return the bytes of which `read` returns the content; None without a file."""
        found = self._whole(name)
        return None if found is None else found[0]

    def _whole(self, name: str) -> tuple[bytes, dict[str, Any]] | None:
        fault: CorruptRecord | None = None
        for path in (self._path(name), self._path(name) + _BACKUP):
            try:
                raw = self._vfs.read_file(path)
                return raw, _checked(name, raw)
            except FileNotFoundError:
                continue
            except ValueError as error:
                fault = fault or CorruptRecord(
                    path, 0, f"is not a configuration of a broker: {error}; mend it, or put a copy"
                    " in its place",
                )  # fmt: skip
        if fault is not None:
            raise fault
        return None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a file, whole and durable; what was there before goes to its backup."""
        self.write_raw(name, dumps(content).encode())

    def write_raw(self, name: str, raw: bytes) -> bool:
        """As `write`, with the bytes of a file; False if the file has them.

        InvalidMessage for bytes that are not a configuration of a broker.
        """
        check_config(name, raw)
        if not self._vfs.exists(self.directory):
            self._vfs.make_directories(self.directory)
            self._vfs.sync_directory(os.path.dirname(self.directory))
        path = self._path(name)
        if self._vfs.exists(path):
            old = self._vfs.read_file(path)
            if old == raw:
                return False
            if _is_whole(name, old):
                self._vfs.replace_file(path + _BACKUP, old)
        self._vfs.replace_file(path, raw)
        return True

    def _save(
        self, name: str, key: str, table: Mapping[Any, Any], now_ms: int, *, versioned: bool = False
    ) -> None:
        """Replace a file's table; its other content stays, and its version counts up.

        5.x has a version in every file, 4.9 in some (`versioned`).
        """
        try:
            given = json.loads(json.dumps(table, ensure_ascii=False).encode())
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"{name}: cannot be written: {error}") from None
        content = self.read(name)
        if content.get(key) == given:
            return
        newer = self._compat == "5.3.3"
        if versioned or newer or "dataVersion" in content:
            old = content.get("dataVersion") or ({"stateVersion": 0} if newer else {})
            counter = old.get("counter", 0) + 1
            content["dataVersion"] = dict(
                sorted({**old, "counter": counter, "timestamp": now_ms}.items())
            )
        content[key] = table
        self.write(name, dict(sorted(content.items())))

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def check_config(name: str, raw: bytes) -> None:
    """Raise InvalidMessage for bytes that a broker could not read as the file of this name."""
    try:
        _checked(name, raw)
    except ValueError as error:
        raise InvalidMessage(f"{name} is not a configuration of a broker: {error}") from None


def check_place(topic: object, group: object) -> None:
    """Raise InvalidName for names under which no offset could be written, or be read again.

    A real broker checks no names in a commit. The key is `topic@group`.
    """
    for kind, name in (("topic", topic), ("group", group)):
        if not isinstance(name, str) or not name:
            raise InvalidName(str(name), f"the name of a {kind} is a text, and not empty")
        if "@" in name or any("\ud800" <= sign <= "\udfff" for sign in name):
            raise InvalidName(name, f"the name of a {kind} has no @, and can be written as UTF-8")


def _is_whole(name: str, raw: bytes) -> bool:
    try:
        _checked(name, raw)
    except ValueError:
        return False
    return True


def _checked(name: str, raw: bytes) -> dict[str, Any]:
    """Return the content of a file; ValueError if RocketMQ could not read it as that file."""
    text = raw.decode()
    if text.lstrip()[:1] not in ("{", "/"):  # a comment may come first
        raise ValueError("it is not a map")
    try:
        content = loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a map")
    _number("dataVersion.counter", _map(content, "dataVersion").get("counter", 0), LONG_MAX)
    if name in _TABLES:
        _TABLES[name](content)
    return content


def _topics(content: Mapping[str, Any]) -> dict[str, TopicConfig]:
    return _rows(TopicConfig, content, "topicConfigTable")


def _groups(content: Mapping[str, Any]) -> dict[str, SubscriptionGroupConfig]:
    return _rows(SubscriptionGroupConfig, content, "subscriptionGroupTable")


def _rows(kind: Any, content: Mapping[str, Any], table: str) -> dict[str, Any]:
    rows = _map(content, table)
    return {name: _of_bean(kind, name, _map(rows, name)) for name in rows}


def _consumer_offsets(content: Mapping[str, Any]) -> dict[tuple[str, str], dict[int, int]]:
    table = _map(content, "offsetTable")
    return {_place(key): _by_number(table, key) for key in table}


def _place(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group


def _by_number(content: Mapping[str, Any], key: str) -> dict[int, int]:
    return {
        _number(f"a key of {key}", number, INT_MAX): _number(f"{key}, {number}", value, LONG_MAX)
        for number, value in _map(content, key).items()
    }


def _pop_groups(content: Mapping[str, Any]) -> set[tuple[str, str]]:
    modes = _map(content, "messageRequestModeMap")
    rows = {topic: _map(modes, topic) for topic in modes}
    return {
        (topic, group)
        for topic, groups in rows.items()
        for group in groups
        if _map(groups, group).get("mode") == "POP"
    }


#: What reads a file's table; ValueError if a type is wrong.
_TABLES: dict[str, Callable[[Mapping[str, Any]], object]] = {
    TOPICS_FILE: _topics,
    SUBSCRIPTION_GROUP_FILE: _groups,
    CONSUMER_OFFSET_FILE: _consumer_offsets,
    DELAY_OFFSET_FILE: lambda content: _by_number(content, "offsetTable"),
    REQUEST_MODE_FILE: _pop_groups,
}


def _map(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a map in a map, {} for none and for a null, as fastjson reads it."""
    found = content.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise InvalidMessage(f"{key}: a map is needed, not {_shown(found)}")
    return found or {}


def _number(place: str, value: Any, most: int) -> int:
    """Return a number, which may be written as a text."""
    is_text = isinstance(value, str) and len(value) <= 20 and _WHOLE.fullmatch(value)
    number = whole_number(int(value) if is_text else value)
    if number is None or not -most - 1 <= number <= most:
        raise InvalidMessage(
            f"{place}: a whole number from {-most - 1} to {most} is needed, not {_shown(value)}"
        )
    return number


def _shown(value: object) -> str:
    return ascii(value)[:60]


@cache
def _names(kind: Any) -> dict[str, str]:
    """Return a table: names in the file -> names of the fields."""
    plain = [field.name for field in fields(kind) if field.name != "others"]
    return {re.sub(r"_([a-z])", lambda m: m[1].upper(), name): name for name in plain}


def _bean(row: Any) -> dict[str, Any]:
    """Return a row as fastjson writes a bean: fields by name, nulls left out.

    InvalidMessage for a value of another type than the field's.
    """
    kind: Any = type(row)
    values = _values(kind, {camel: getattr(row, name) for camel, name in _names(kind).items()})
    return {k: v for k, v in sorted({**row.others, **values}.items()) if v is not None}


def _of_bean(kind: Any, name: str, bean: Mapping[str, Any]) -> Any:
    """Return a row; a field without a value, or with a null, has its default."""
    names = _names(kind)
    first = next(iter(names))
    given = {first: name} | {k: v for k, v in bean.items() if k in names and v is not None}
    known = {names[key]: value for key, value in _values(kind, given).items()}
    return kind(**known, others={k: v for k, v in bean.items() if k not in names})


def _values(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row by their names in the file, each with its field's type."""
    types, names = _types(kind), _names(kind)
    return {key: _value(key, names[key], types[names[key]], v) for key, v in values.items()}


@cache
def _types(kind: Any) -> dict[str, Any]:
    return {field.name: field.type for field in fields(kind)}


def _value(key: str, name: str, kind: Any, value: Any) -> Any:
    if kind == "int":
        return _number(key, value, LONG_MAX if name in _LONGS else INT_MAX)
    if kind in ("bool", "str"):
        if not isinstance(value, bool if kind == "bool" else str):
            needed = "true or false" if kind == "bool" else "a text"
            raise InvalidMessage(f"{key}: {needed} is needed, not {_shown(value)}")
    elif value is not None and not _is_texts(value):
        raise InvalidMessage(f"{key}: a map of texts to texts is needed, not {_shown(value)}")
    return value


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def with_batch_topics(config: MessageStoreConfig, vfs: Vfs, root: str) -> MessageStoreConfig:
    """Return the options with the batch topics of the directory's `topics.json` added."""
    found = set(config.batch_topics)
    base = os.path.join(root, BATCH_CONSUME_QUEUE_DIRECTORY)
    found |= {name for name, is_directory, _ in vfs.entries(base) if is_directory}
    try:
        topics = BrokerConfig(vfs, root).topics()
    except CorruptRecord:  # `check` reports it
        topics = {}
    found |= {name for name, topic in topics.items()
              if (topic.attributes or {}).get(_QUEUE_TYPE) == _BATCH_TYPE}  # fmt: skip
    if found == config.batch_topics:
        return config
    return config.changed(batch_topics=frozenset(found))
