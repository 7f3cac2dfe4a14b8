"""Positions of groups of a tubestore root as RocketMQ's `consumerOffset.json`, and back.

RocketMQ counts the messages of a queue; here a position is a place in a shard's index. A message
that came from a log has its queue offset in its record (`shards/record.py`), so positions of
`<root>/tube/` and the broker's file of the same root name the same messages. Other messages are
counted from the first one that their partition keeps, as a copy into a new log counts them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from rocketcompat.files.broker_config import dumps, loads
from rocketcompat.files.config_files import bad_offsets, consumer_offsets
from rocketcompat.record.properties import PROPERTY_INNER_COUNT, RETRY_PREFIX
from rocketcompat.shards.record import queue_offset_in
from tubestore.errors import InvalidMessage
from tubestore.groups import admin
from tubestore.groups.admin import Moved
from tubestore.groups.exchange import GroupPositions
from tubestore.messages import Message
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import Topic
from tubestore.values import checked_texts


def export_groups(store: MessageStoreManager, groups: Iterable[str] | None = None) -> str:
    """Return the positions of some groups, or of all, as the text of a `consumerOffset.json`.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     ack = store.create_topic("orders").append_batch({"body": [b"a", b"b", b"c"]})
    ...     moved = store.commit_group("g", {("orders", 0): 56})
    ...     print(export_groups(store).replace("\\t", " "))
    {
     "offsetTable":{
      "orders@g":{0:2
      }
     }
    }
    """
    names = store.groups() if groups is None else checked_texts("groups", groups)
    files = map(engine_of(store).shards.directory_of, names)
    table = {
        f"{topic}@{group}": {
            number: _NumberedMessages(store[topic], number).offset_at(position)
            for number, position in sorted(positions.items())
        }
        for group, topics in admin.positions_of(files).items()
        for topic, positions in topics.items()
        if topic in store
    }
    return dumps({"offsetTable": table})


def import_groups(
    store: MessageStoreManager, text: str, *, dry_run: bool = False
) -> dict[str, list[Moved]]:
    """Set the positions that a broker's `consumerOffset.json` has, durably.

    Returns what moves, or with `dry_run` would, by group. An offset that is not there becomes the
    nearest one. InvalidMessage, before anything is set, for a text of another form, for topics and
    queues that are not there, and for a group with a living member. A group's retry topic is left
    out if the store does not have it.
    """
    wanted: GroupPositions = {}
    for (topic, group, number), offset in _offsets_in(text).items():
        if topic not in store and topic.startswith(RETRY_PREFIX):
            continue
        # What is not there is refused below, with all the others.
        known = topic in store and number in set(store[topic].partition_ids)
        position = _NumberedMessages(store[topic], number).position_of(offset) if known else 0
        wanted.setdefault(group, {}).setdefault(topic, {})[number] = position
    engine = engine_of(store)
    shards, clock = engine.shards, engine.context.clock
    return admin.import_positions(wanted, shards.directory_of, shards, clock, dry_run=dry_run)


def _offsets_in(text: str) -> dict[tuple[str, str, int], int]:
    try:
        content = loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"not a consumerOffset.json of RocketMQ's: {error}") from error
    if not isinstance(content, dict) or "offsetTable" not in content:
        raise InvalidMessage("not a consumerOffset.json of RocketMQ's: it has no offsetTable")
    bad = bad_offsets(content)
    if bad:
        raise InvalidMessage(f"consumerOffset.json: {bad[0]} is no offset of a queue")
    return consumer_offsets(content)


class _NumberedMessages:
    """A partition by the queue offsets of its messages."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self._topic, self._partition = topic, partition

    def offset_at(self, position: int) -> int:
        """Return the queue offset of the first message from a position on, or of the next one."""
        topic, number = self._topic, self._partition
        last = topic.last_offset(number)
        if last is None:
            return 0
        position = max(position, topic.first_offset(number))
        if position > last:
            known = self._span(last)
            return topic.count(number) if known is None else known[1]
        known = self._span(position)
        return topic.count(number, end=position) if known is None else known[0]

    def position_of(self, offset: int) -> int:
        """Return the position of the message with a queue offset; the nearest if there is none."""
        topic, number = self._topic, self._partition
        count = topic.count(number)
        if not count or self._span_of_row(0) is None:
            return topic.skip(number, "earliest", max(0, offset))
        row = bisect_right(range(count), offset, key=self._first_of_row)
        span = self._span_of_row(row - 1) if row else None
        inside = span is not None and offset < span[1]
        return topic.skip(number, "earliest", row - inside)

    def _first_of_row(self, row: int) -> int:
        span = self._span_of_row(row)
        return -1 if span is None else span[0]

    def _span_of_row(self, row: int) -> tuple[int, int] | None:
        return self._span(self._topic.skip(self._partition, "earliest", row))

    def _span(self, position: int) -> tuple[int, int] | None:
        """Return the queue offsets [first, end) of the message at a position, by its record."""
        message: Message = next(iter(self._topic.read(self._partition, position, limit=1)))
        first = queue_offset_in(message.attributes)
        if first is None:
            return None
        return first, first + int(message.attributes.get(PROPERTY_INNER_COUNT) or 1)
