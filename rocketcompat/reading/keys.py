"""Reads by key: `queryMessage`, and one record by its physical offset.

Functions over the parts of a store; nothing here writes, all of it is thread-safe.

Difference from RocketMQ: `query_message` compares the key's text, and a message is in the answer
once. RocketMQ answers by hash and leaves the rest to the client; with `by_hash=True`
this does so, too. A walk by hash ends at a negative time, and behind the first item before the
window. A walk that compares the text goes on, since each record proves itself: a damaged time, or
times from before a clock was set back, hide no other message.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketcompat.commitlog.reads import LogBytes, read_found, read_record
from rocketcompat.index.items import key_hash
from rocketcompat.messages import MessageRecord
from rocketcompat.reading.parts import Found, IndexPart, StoreParts
from rocketcompat.record.properties import keys_of
from tubestore.errors import CorruptRecord

#: Rounds of `query_message`, each with a window that ends at the oldest message found so far.
QUERY_ROUNDS = 3
_FOREVER = (1 << 63) - 1


@dataclass(frozen=True)
class QueryMessageResult(Found):
    """The messages of a query, oldest first, and up to where the index had the log then."""

    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0


def query_message(
    store: StoreParts, topic: str, key: str, max_count: int = 32, begin: int = 0,
    end: int | None = None, *, by_hash: bool = False,
) -> QueryMessageResult:  # fmt: skip
    """Find messages by key, stored in [begin, end] ms, the newest `max_count`, oldest first.

    At most `max_msgs_num_batch` (64) are returned, as in RocketMQ. With `by_hash` the answer is
    RocketMQ's: other keys of the same hash, a message once for each of its keys that match, times
    to the second. Without it a damaged record to which the key's hash leads is in
    the answer's `problems`: what its key was cannot be known.
    """
    end = _FOREVER if end is None else end
    count_max = min(max_count, store.config.max_msgs_num_batch)
    if store.index is None or count_max <= 0:
        return QueryMessageResult()
    hash_of_key = key_hash(topic, key)
    if by_hash:
        return _query_by_hash(store.commit_log, store.index, hash_of_key, count_max, begin, end)
    found: dict[int, MessageRecord] = {}
    damaged: dict[int, CorruptRecord] = {}
    for offset in store.index.candidates(hash_of_key, begin, end):
        if offset in found:
            continue
        record = read_found(store.commit_log, offset)
        if isinstance(record, CorruptRecord):
            damaged[offset] = record
            continue
        if record is None or not begin <= record.store_timestamp <= end:
            continue
        if record.topic == topic and key in keys_of(record.properties):
            found[offset] = record
            if len(found) >= count_max:
                break
    time, last = store.index.last_update
    entries: dict[int, MessageRecord | CorruptRecord] = {**found, **damaged}
    offsets = sorted(entries)
    return QueryMessageResult(tuple(entries[offset] for offset in offsets), offsets, time, last)


def _query_by_hash(
    log: LogBytes, index: IndexPart, hash_of_key: int, count_max: int, begin: int, end: int
) -> QueryMessageResult:
    """Answer as RocketMQ: up to three rounds, each ending before the oldest found."""
    entries: list[tuple[int, MessageRecord]] = []
    time = last = 0
    for _ in range(QUERY_ROUNDS):
        offsets, newest, newest_offset = index.select_hash(hash_of_key, count_max, begin, end)
        if not offsets:
            break
        time, last = newest, newest_offset
        offsets.sort()
        read = [(offset, read_record(log, offset)) for offset in offsets]
        entries = [(offset, record) for offset, record in read if record is not None]
        if read[0][1] is not None:
            end = read[0][1].store_timestamp
        if entries or end < begin:
            break
    return QueryMessageResult(
        tuple(record for _, record in entries), [offset for offset, _ in entries], time, last
    )


def look_message_by_offset(store: StoreParts, physical_offset: int) -> MessageRecord | None:
    """Return the sound record that starts at a physical offset; None if there is none."""
    return read_record(store.commit_log, physical_offset)
