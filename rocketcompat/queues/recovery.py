"""Recovery of the queues: which units the log gives again, and which are all that is left.

Units at or above the trusted mark are cut, since the log is handed over from there. Queues that
the log will not fill again are cut only at its end: their directories were made by hand, or their
records are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from rocketcompat.commitlog.reads import ReadableLog, record_at
from rocketcompat.commitlog.walk import Gap, Piece, gap_of, walk
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.formats import CQ_PRE_FILL_SIZE
from rocketcompat.messages import has_queue_unit
from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.copies import copies_of_one, places_of
from tubestore.core.quarantine import Quarantine
from tubestore.errors import CorruptRecord, OffsetOutOfRange

_NO_OFFSET = (1 << 63) - 1


class Queues(Protocol):
    """The queues of a store; `table.ConsumeQueueTable`."""

    batch_topics: frozenset[str]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Go over all of them."""

    def of_kind(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one of them, None if there is none."""

    def note(self, error: CorruptRecord) -> None:
        """Report, and log, what is damaged."""

    def lacks_file(self, trust: Trust, *, from_zero: bool) -> bool:
        """Return whether a queue lacks a file before its last; then it is reported."""

    def lacks_places(self, trust: Trust) -> bool:
        """Return whether queues that were cut at the trusted mark lack units; it is reported."""


def recover_queues(
    queues: Queues, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
) -> int:
    """Cut the queues at what is trusted; returns the offset from which the log is needed again.

    Queues that lack a file, or units below the mark, are built from the log's beginning. The mark
    is lowered before: a crash in between finds none that trusts units which were cut.
    """
    if trust.as_left:
        return log.max_offset
    whole = not log.min_offset  # then no file was deleted by age
    lacks_file = queues.lacks_file(trust, from_zero=whole)
    if trust.mark is not None and not lacks_file:
        # Units below the log's minimum stay: they are all that is left of those offsets.
        _cut_queues(queues, log, trust.mark, None, trust.keeper)
        if not queues.lacks_places(trust):
            return trust.mark
    if trust.own and lower_mark is not None:
        lower_mark(log.min_offset)
    start = log.min_offset if trust.own else trust.verified_from
    joined = _cut_queues(queues, log, start, _first_offsets(queues, log, start), trust.keeper)
    if not joined:
        start = log.min_offset
        _cut_queues(queues, log, start, _first_offsets(queues, log, start), trust.keeper)
    return start


def _cut_queues(
    queues: Queues, log: ReadableLog, start: int, firsts: dict[QueueKey, int] | None,
    keeper: Quarantine | None,
) -> bool:  # fmt: skip
    """Cut the queues at `start`, but those that the log will not fill again only at its end.

    `firsts` are the queues that the log fills from `start` on, with their first offsets; None for
    all. False if one of them does not join its first offset: then it has to be built from the
    log's beginning.
    """
    joined = True
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        filled = firsts is None or key in firsts
        queue.recover(start if filled else log.max_offset, keeper, log.max_offset)
        if filled:
            _drop_foreign_units(queues, log, queue)
        joined = joined and not queue.has_hole
        joined = joined and not (queue.first_file_offset and not log.min_offset)
    for key, first in (firsts or {}).items():
        found = queues.of_kind(*key)
        joined = joined and first == (found.max_offset if found is not None else 0)
    return joined or start == log.min_offset


def _first_offsets(queues: Queues, log: ReadableLog, start: int) -> dict[QueueKey, int]:
    """Return the lowest queue offset that the log has from `start` on, of each queue."""
    lowest: dict[QueueKey, int] = {}
    for piece in sound_pieces(log, start, log.max_offset):
        records = decode_columns(piece.data, piece.starts, piece.base)
        places = places_of(records)
        rows = np.flatnonzero(has_queue_unit(records.column("sys_flag")))
        firsts = np.full(len(places.keys), _NO_OFFSET)
        np.minimum.at(firsts, places.codes[rows], records.column("queue_offset")[rows])
        np.minimum.at(firsts, places.copy_codes, places.copy_offsets)
        for key, offset in zip(places.keys, firsts.tolist(), strict=True):
            lowest[key] = min(lowest.get(key, _NO_OFFSET), offset)
    return {
        key: offset
        for key, offset in lowest.items()
        if offset != _NO_OFFSET and key[0] not in queues.batch_topics
    }


def _drop_foreign_units(queues: Queues, log: ReadableLog, queue: ConsumeQueue) -> None:
    """Cut a queue's last unit while the record that it points to has another place.

    A unit of which a cut was zeroing the front when the process ended points too low, and
    would stay as one below the mark. A unit of a damaged record stays, and with it the queue offset
    of the message: the damage is reported.
    """
    end = queue.max_offset
    while end > 0 and (unit := queue.unit(end - 1)) is not None:
        offset, size, _ = unit
        if size == CQ_PRE_FILL_SIZE or offset < log.min_offset or log.gaps.over(offset):
            return
        try:
            record = record_at(log, offset, check_crc=False)
            places = [
                ((record.topic, record.queue_id), record.queue_offset),
                *copies_of_one(record.properties, record.queue_id),
            ]
            if record.size == size and ((queue.topic, queue.queue_id), end - 1) in places:
                return
        except CorruptRecord as error:
            if _is_chained(log, offset):
                which = f"the record of {queue.topic}/{queue.queue_id}@{end - 1}"
                queues.note(CorruptRecord(error.path, error.position, f"{which}: {error.reason}"))
                return
        except OffsetOutOfRange:
            pass
        end -= 1
        queue.cut(end)


def _is_chained(log: ReadableLog, offset: int) -> bool:
    """True if the chain of records of a file leads to an offset, whatever is there."""
    file = log.queue.find(offset)
    if file is None:
        return False
    position = file.file_from_offset
    for found in walk(log.queue, position, offset, on_fault=lambda *_: None, known=log.gaps):
        position = found.end
    return position == offset


def sound_pieces(log: ReadableLog, start: int, end: int) -> Iterator[Piece]:
    """Follow the chain from `start`, over the gaps that are known; no checksums."""

    def up_to_the_next(position: int, fault: str) -> Gap:
        return gap_of(log.queue, position, log.gaps.next_start(position, end), fault)

    for found in walk(log.queue, start, end, on_fault=up_to_the_next, known=log.gaps):
        if isinstance(found, Piece) and len(found.starts):
            yield found
