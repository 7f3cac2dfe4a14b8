"""What a broker keeps below `<root>/config`: topics, subscription groups, consumers' offsets.

Each table is read when the broker opens, kept in memory, and written as RocketMQ's managers write
it (`files/broker_config.py`): topics and groups at each change, offsets every
`flush_consumer_offset_interval` ms and at the close. A file that cannot be read, nor its backup, is
CorruptRecord: no table begins anew by itself.

A table of a store that is open for reading changes nothing on the disk. Such a broker reads the
files again with each `reload`, and learns topics without a row from the store's queues.

All calls are thread-safe: each table has one lock, which no call holds while it waits.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from rocketcompat.broker.pulling import whole
from rocketcompat.files.broker_config import (
    INT_MAX,
    LONG_MAX,
    BrokerConfig,
    SubscriptionGroupConfig,
    TopicConfig,
    check_place,
)
from rocketcompat.record.properties import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import InvalidName, ReadOnlyStore, TopicExists, UnknownTopic

_log = logger(__name__)

#: A topic's `perm` is a sum of these.
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
READ_WRITE = PERM_READ | PERM_WRITE
_PERM_MAX = PERM_INHERIT | PERM_WRITE | PERM_READ

#: The topic from which a topic that a producer names for the first time is made.
DEFAULT_TOPIC = "TBW102"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_TIMES_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Topics that a producer cannot send to.
NOT_FOR_PRODUCERS = frozenset({
    SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_TIMES_TOPIC, "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
})  # fmt: skip
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_TOPIC_LENGTH_MAX, _GROUP_LENGTH_MAX = 127, 255
#: Queues of a topic that a producer makes by naming it, unless the default topic has fewer.
_CLIENT_QUEUES = 4


def checked_topic(name: object) -> str:
    """Return a topic's name; InvalidName if RocketMQ's brokers refuse it."""
    return _checked_name(name, "topic", _TOPIC_LENGTH_MAX)


def checked_group(name: object) -> str:
    """Return a group's name; InvalidName if RocketMQ's brokers refuse it."""
    return _checked_name(name, "group", _GROUP_LENGTH_MAX)


def _checked_name(name: object, kind: str, longest: int) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        reason = f"a {kind} has letters, digits, and the signs % | - _"
        raise InvalidName(name if isinstance(name, str) else repr(name), reason)
    if len(name) > longest:
        raise InvalidName(name, f"a {kind} has {longest} characters at most")
    return name


def _built_in(default_queues: int, *, auto_create: bool) -> dict[str, TopicConfig]:
    """Return the topics that each broker has without a row in its file."""
    found = {name: TopicConfig(name, 1, 1) for name in ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")}
    found[SCHEDULE_TOPIC] = TopicConfig(SCHEDULE_TOPIC, 18, 18)
    found["BenchmarkTest"] = TopicConfig("BenchmarkTest", 1024, 1024)
    if auto_create:
        perm = READ_WRITE | PERM_INHERIT
        found[DEFAULT_TOPIC] = TopicConfig(DEFAULT_TOPIC, default_queues, default_queues, perm)
    return found


class Topics:
    """The topics of a broker (`TopicConfigManager`); `topics.json`."""

    def __init__(
        self, files: BrokerConfig, clock: Clock, *, default_queues: int = 8,
        auto_create: bool = True, queues: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:  # fmt: skip
        """`queues` returns the queues of each topic of a store that is open for reading."""
        self._files, self._clock, self._queues = files, clock, queues
        self._auto_create = auto_create
        self._built_in = _built_in(default_queues, auto_create=auto_create)
        self._lock = threading.RLock()
        self._rows: dict[str, TopicConfig] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        rows = self._files.topics()
        if self._queues is not None:
            for name, count in self._queues().items():
                rows.setdefault(name, TopicConfig(name, count, count))
        with self._lock:
            self._rows = rows

    def names(self) -> list[str]:
        """Return the names of all topics that were created, sorted."""
        with self._lock:
            return sorted(self._rows)

    def find(self, name: str) -> TopicConfig | None:
        """Return a topic's row; None if there is no such topic."""
        with self._lock:
            row = self._rows.get(name) or self._built_in.get(name)
            return replace(row) if row is not None else None

    def get(self, name: str) -> TopicConfig:
        """Return a topic's row; UnknownTopic if there is no such topic."""
        found = self.find(name)
        if found is None:
            raise UnknownTopic(name, self.names())
        return found

    def create(
        self, name: str, queues: int = 8, *, perm: int = READ_WRITE, order: bool = False,
        attributes: Mapping[str, str] | None = None, exist_ok: bool = False,
    ) -> TopicConfig:  # fmt: skip
        """Make a topic with so many queues to read and to write; durable on return.

        TopicExists for a topic that is there, unless `exist_ok`: then it stays as it is.
        """
        checked_topic(name)
        queues = whole("queues", queues, least=1, most=INT_MAX)
        perm = whole("perm", perm, most=_PERM_MAX)
        with self._lock:
            old = self.find(name)
            if old is not None:
                if exist_ok:
                    return old
                raise TopicExists(name)
            given = dict(attributes) if isinstance(attributes, Mapping) else attributes
            row = TopicConfig(name, queues, queues, perm, order, attributes=given or None)
            return self._put(row)

    def update(self, row: TopicConfig) -> None:
        """Replace a topic's row, or make the topic; durable on return.

        Fewer queues leave the messages of the others where they are: no consumer reads them until
        there are as many queues again.
        """
        checked_topic(row.topic_name)
        whole("read_queue_nums", row.read_queue_nums, most=INT_MAX)
        whole("write_queue_nums", row.write_queue_nums, most=INT_MAX)
        whole("perm", row.perm, most=_PERM_MAX)
        self._put(replace(row))

    def delete(self, name: str) -> None:
        """Remove a topic's row; its messages stay in the log until they expire."""
        with self._lock:
            if name not in self._rows:
                raise UnknownTopic(name, self.names())
            self._save({key: row for key, row in self._rows.items() if key != name})

    def for_producer(self, name: str) -> TopicConfig:
        """Return a topic to send to, made from the default topic if there is none.

        UnknownTopic without `auto_create_topic_enable`; InvalidName for a topic that belongs to the
        broker.
        """
        with self._lock:
            found = self._rows.get(name)
            if found is not None and name not in NOT_FOR_PRODUCERS:
                return replace(found)
            checked_topic(name)
            if name in NOT_FOR_PRODUCERS:
                raise InvalidName(name, "no producer may send to this topic of the broker")
            known = self._built_in.get(name)
            if known is not None:
                return replace(known)
            if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
                return self.for_group(name, 1)
            default = self._rows.get(DEFAULT_TOPIC) or self._built_in.get(DEFAULT_TOPIC)
            if default is None or not self._auto_create or not default.perm & PERM_INHERIT:
                raise UnknownTopic(name, self.names())
            queues = min(_CLIENT_QUEUES, default.write_queue_nums)
            row = TopicConfig(name, queues, queues, default.perm & ~PERM_INHERIT)
            row.topic_filter_type = default.topic_filter_type
            return self._put(row)

    def for_group(self, name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        """Return a topic that the broker itself needs, made if there is none."""
        with self._lock:
            return self.find(name) or self._put(TopicConfig(name, queues, queues, perm))

    def _put(self, row: TopicConfig) -> TopicConfig:
        with self._lock:
            self._save({**self._rows, row.topic_name: row})
            return replace(row)

    def _save(self, rows: dict[str, TopicConfig]) -> None:
        if self._queues is not None:
            raise ReadOnlyStore(f"{self._files.directory}: the store is open with mode='r'")
        self._files.save_topics(rows, self._clock.now_ms())
        self._rows = rows


class Groups:
    """The subscription groups of a broker (`SubscriptionGroupManager`)."""

    def __init__(
        self, files: BrokerConfig, clock: Clock, *, auto_create: bool = True, writable: bool = True
    ) -> None:
        self._files, self._clock = files, clock
        self._auto_create, self._writable = auto_create, writable
        self._lock = threading.RLock()
        self._rows = files.subscription_groups()

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        with self._lock:
            return sorted(self._rows)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's row; None if there is no such group."""
        with self._lock:
            row = self._rows.get(name)
            return replace(row) if row is not None else None

    def get(self, name: str) -> SubscriptionGroupConfig:
        """Return a group's row, made if there is none.

        InvalidName without `auto_create_subscription_group`.
        """
        with self._lock:
            row = self._rows.get(name)
            if row is not None:
                return replace(row)
            checked_group(name)
            if not self._auto_create:
                raise InvalidName(name, "there is no such subscription group; create it")
            row = SubscriptionGroupConfig(name)
            if self._writable:
                self.update(row)
            return row

    def update(self, row: SubscriptionGroupConfig) -> None:
        """Replace a group's row, or make the group; durable on return."""
        checked_group(row.group_name)
        with self._lock:
            self._save({**self._rows, row.group_name: replace(row)})

    def delete(self, name: str) -> None:
        """Remove a group's row; nothing if there is none."""
        with self._lock:
            if name in self._rows:
                self._save({key: row for key, row in self._rows.items() if key != name})

    def _save(self, rows: dict[str, SubscriptionGroupConfig]) -> None:
        if not self._writable:
            raise ReadOnlyStore(f"{self._files.directory}: the store is open with mode='r'")
        self._files.save_subscription_groups(rows, self._clock.now_ms())
        self._rows = rows


class Offsets:
    """The next queue offset of each group, topic and queue (`ConsumerOffsetManager`).

    A commit is in memory until `persist`. After a kill, what was committed since comes again.
    """

    def __init__(self, files: BrokerConfig, clock: Clock, *, writable: bool = True) -> None:
        self._files, self._clock, self._writable = files, clock, writable
        self._lock = threading.Lock()
        #: Held while the file is written, so that an older table never replaces a newer one.
        self._file_lock = threading.Lock()
        self._rows = files.consumer_offsets()
        self._changed = False

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return what was committed; None if nothing was."""
        with self._lock:
            return self._rows.get((topic, group), {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return what a group has committed in a topic, by queue."""
        with self._lock:
            return dict(self._rows.get((topic, group), {}))

    def places(self) -> list[tuple[str, str]]:
        """Return the (topic, group) pairs that have offsets."""
        with self._lock:
            return sorted(self._rows)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset. The last commit counts, also if it goes back.

        InvalidName and InvalidMessage for what the file cannot hold: one bad row would keep the
        offsets of all groups from the disk.
        """
        check_place(topic, group)
        queue_id = whole("queue_id", queue_id, most=INT_MAX)
        self._set(group, topic, queue_id, whole("offset", offset, most=LONG_MAX))

    def clone(self, source: str, group: str, topic: str) -> None:
        """Give a group the offsets of another one in a topic."""
        check_place(topic, group)
        for queue_id, offset in self.of(source, topic).items():
            self._set(group, topic, queue_id, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if not self._writable:
            raise ReadOnlyStore(f"{self._files.directory}: the store is open with mode='r'")
        with self._lock:
            row = self._rows.setdefault((topic, group), {})
            old = row.get(queue_id)
            row[queue_id] = offset
            self._changed = self._changed or old != offset
        if old is not None and offset < old:
            _log.warning(
                "%s: queue %d of %s goes back from %d to %d", group, queue_id, topic, old, offset
            )

    def remove(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the offsets of a group, or of all groups in a topic."""
        with self._lock:
            gone = [key for key in self._rows if key[1] == group or key[0] == topic]
            for key in gone:
                del self._rows[key]
            self._changed = self._changed or bool(gone)

    def persist(self) -> None:
        """Write what has changed; durable on return."""
        with self._file_lock:
            with self._lock:
                if not self._changed:
                    return
                self._changed = False
                rows = {key: dict(row) for key, row in self._rows.items()}
            try:
                self._files.save_consumer_offsets(rows, self._clock.now_ms())
            except BaseException:
                with self._lock:
                    self._changed = True
                raise
