"""Reads of many records at once, as Arrow: the whole log, a queue, the answers to many keys.

Answers have the columns of `record.arrow.RECORD_SCHEMA`. Records are read in place, through maps
of the written bytes; bodies are copied out. Offsets are queue offsets; physical ones are named so.
These are functions over the parts of a store; they write nothing and are thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.commitlog.reads import ReadableLog, foreign_record, unit_without_record
from rocketcompat.commitlog.walk import Gaps
from rocketcompat.formats import (
    CQ_PRE_FILL_SIZE,
    LOST_REASON,
    MAGIC_V1,
    parse_properties,
)
from rocketcompat.index.items import key_hashes
from rocketcompat.messages import MessageRecord
from rocketcompat.reading.choice import ALL, Choice, units_with
from rocketcompat.reading.parts import QueuePart
from rocketcompat.record.arrow import (
    RECORD_SCHEMA,
    batch_of_plain,
    batch_of_records,
    empty_batch,
)
from rocketcompat.record.columns import RecordColumns, decode_columns
from rocketcompat.record.rows import lost_rows
from rocketcompat.record.verify import follow
from tubestore.core.kernels import Int64s, ranks, slices
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord, OffsetOutOfRange
from tubestore.messages import ArrowTable, check_columns

#: Records of about so many bytes come in a batch of a scan: what stays in a processor's cache.
SCAN_BYTES = 4 << 20
_QUEUE_ID, _TOPIC, _MARK, _QUEUE_OFFSET = map(
    RECORD_SCHEMA.get_field_index,
    ("queue_id", "topic", "prepared_transaction_offset", "queue_offset"),
)


class _BatchPage(ArrowTable):
    """Messages as one Arrow batch; by their number, and gone through, they are records."""

    batch: pa.RecordBatch

    @property
    def table(self) -> pa.Table:
        """All rows, as a table."""
        return pa.Table.from_batches([self.batch])

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return self.batch.__arrow_c_array__(requested_schema)

    def __iter__(self) -> Iterator[MessageRecord]:
        return _records_of(self.batch)

    @overload
    def __getitem__(self, place: int) -> MessageRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[MessageRecord]: ...
    def __getitem__(self, place: int | slice) -> MessageRecord | list[MessageRecord]:
        if isinstance(place, slice):
            return list(_records_of(self.batch.take(pa.array(range(len(self))[place], pa.int64()))))
        if not -len(self) <= place < len(self):
            raise IndexError(f"message {place} of a page of {len(self)}")
        return next(_records_of(self.batch.slice(place % len(self), 1)))


@dataclass(frozen=True)
class QueuePage(_BatchPage):
    """Messages of a queue, and where to go on: behind those that cannot be read, too.

    A stand-in of a lost message has the state "lost" and no body, and is in `problems`. `page[0]`,
    `page[-3:]` and a loop give records, as `get_message` does (they need all columns).
    """

    batch: pa.RecordBatch
    next_offset: int
    problems: list[CorruptRecord] = field(default_factory=list)

    def __repr__(self) -> str:
        return _short(self, f"next_offset={self.next_offset}")


@dataclass(frozen=True)
class QueuesPage(_BatchPage):
    """Messages of many queues, in the order of the log, and where to go on in each queue.

    Its rows are records as those of a `QueuePage` are.
    """

    batch: pa.RecordBatch
    next_offsets: dict[tuple[str, int], int]
    problems: list[CorruptRecord] = field(default_factory=list)

    def __repr__(self) -> str:
        return _short(self, f"{len(self.next_offsets)} queues")


def _records_of(batch: pa.RecordBatch) -> Iterator[MessageRecord]:
    """Go through the rows of a batch with all columns, one record a message."""
    check_columns(batch, RECORD_SCHEMA.names, "a record", ".batch")
    for row in batch.to_pylist():
        yield MessageRecord(
            row["physical_offset"],
            row["total_size"],
            1 if row["magic_code"] == MAGIC_V1 else 2,
            row["topic"],
            row["queue_id"],
            row["queue_offset"],
            row["flag"],
            row["sys_flag"],
            row["born_timestamp"],
            row["store_timestamp"],
            row["born_host"],
            row["store_host"],
            row["reconsume_times"],
            row["prepared_transaction_offset"],
            row["body_crc"],
            row["properties"].decode("utf-8", "replace"),
            row["body"] or b"",
        )


def _short(page: QueuePage | QueuesPage, place: str) -> str:
    """Return how a page is printed: without its rows."""
    counts = f"{page.batch.num_rows} messages, {place}, problems={len(page.problems)}"
    return f"{type(page).__name__}({counts})"


def scan_log(
    log: ReadableLog, start: int | None, end: int | None, *, verify: bool, choice: Choice = ALL
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the log that begin in [start, end), in order.

    `start` and `end` are physical offsets. A record begins at `start`; without `end` all that is
    there is yielded. Known damage is passed over; other damage is CorruptRecord. With `verify` the
    checksum of each body is compared. Files that are deleted by age meanwhile are passed by.
    Batches without a wanted record are left out.
    """
    limit = log.max_offset if end is None else min(end, log.max_offset)
    position = log.min_offset if start is None else start
    if position < limit and position < log.min_offset:
        raise OffsetOutOfRange(position, log.min_offset, log.max_offset)
    while position < limit:
        gap = log.gaps.over(position)
        if gap is not None:
            position = gap.end
            continue
        file = log.queue.find(position)
        if file is None:
            if position >= log.min_offset:
                raise OffsetOutOfRange(position, log.min_offset, log.max_offset)
            position = log.min_offset
            continue
        base, room = file.file_from_offset, file.file_size
        stop = log.gaps.next_start(position, log.max_offset)
        try:
            data = memoryview(file.view(min(stop - base, room)))
        except FileNotFoundError:
            if log.queue.find(position) is None:  # deleted since, by age
                continue
            raise
        at, chain, behind = position - base, None, min(len(data), limit - base)
        while at < behind and not (chain and chain.blank):
            chain = follow(data, at, base, room, bytes_max=min(SCAN_BYTES, behind - at))
            if len(chain.starts):
                batch = _sound(
                    data, chain.starts, base, file.path,
                    verify=verify, with_bodies=choice.with_bodies,
                )  # fmt: skip
                batch = choice.rows_of(batch)
                if batch.num_rows:
                    yield choice.columns_of(batch)
            at = chain.end
            if chain.reason is not None or chain.wanted:
                raise CorruptRecord(file.path, at, chain.reason or "a record that is not whole")
        if chain is None:
            raise CorruptRecord(file.path, at, f"the file has {len(data)} bytes")
        position = base + (room if chain.blank else at)


def _sound(
    data: Buffer, starts: Int64s, base: int, path: str, *, verify: bool, with_bodies: bool
) -> pa.RecordBatch:
    """Return records as a batch; CorruptRecord names the first that is unsound."""
    batch = batch_of_plain(data, starts, base, verify=verify, with_bodies=with_bodies)
    if batch is not None:
        return batch
    try:
        return batch_of_records(decode_columns(data, starts, base, path=path, check_crc=verify))
    except CorruptRecord as error:
        raise CorruptRecord(path, error.position - base, error.reason) from None


class _Places:
    """Records that units or index items point to, by their files."""

    def __init__(self, log: ReadableLog, *, verify: bool, with_bodies: bool) -> None:
        #: True if the checksums of bodies are compared; False if no bodies are copied out.
        self._verify, self._with_bodies = verify, with_bodies
        #: The end of the log when the records were looked up.
        self._log, self.end = log, log.max_offset
        self.problems: list[CorruptRecord] = []

    def each(self, offsets: Int64s, sizes: Int64s | None) -> Iterator[tuple[pa.RecordBatch, range]]:
        """Yield each file's records as a batch, and which rows they are.

        Rows ascend by their offsets. What is no longer there, or not yet, is left out.
        """
        size = self._log.queue.file_size
        bounds = (self._log.min_offset, self.end)
        first, end = offsets.searchsorted(bounds).tolist() if len(offsets) else (0, 0)
        while first < end:
            begin = offsets.item(first)
            behind = begin - begin % size + size
            if offsets.item(end - 1) < behind:
                rows = range(first, end)
            else:
                rows = range(first, int(offsets.searchsorted(behind)))
            first = rows.stop
            file = self._log.queue.find(begin)
            if file is None:
                gap = self._log.gaps.over(begin)
                if gap is not None:  # else it was deleted since, by age
                    places = offsets[rows.start : rows.stop].tolist()
                    self.problems += [
                        CorruptRecord(gap.path, place % size, gap.reason) for place in places
                    ]
                continue
            base = file.file_from_offset
            try:
                data = file.view(min(self.end - base, size))
            except FileNotFoundError:  # deleted since, by age
                continue
            yield from self._made(data, base, file.path, offsets, sizes, rows)

    def _gaps_over(self, offsets: Int64s) -> Gaps:
        """Return the known gaps that contain some of these records, which ascend."""
        gaps = self._log.gaps
        return Gaps(g for g in gaps if np.diff(offsets.searchsorted((g.start, g.end)))[0])

    def _made(
        self, data: Buffer, base: int, path: str, offsets: Int64s, sizes: Int64s | None, rows: range
    ) -> Iterator[tuple[pa.RecordBatch, range]]:
        part = slice(rows.start, rows.stop)
        gaps = self._gaps_over(offsets[part])
        lengths = None if sizes is None else sizes[part]
        verify, starts = self._verify, offsets[part] - base
        found = None
        if not gaps:
            found = batch_of_plain(
                data, starts, base, lengths, verify=verify, with_bodies=self._with_bodies
            )
        if found is not None:
            yield found, rows
            return
        for row in rows:  # some are rare or unsound: one by one
            one = np.array([row])
            known = gaps.over(int(offsets[row]))
            try:
                if known is not None:
                    raise CorruptRecord(path, int(offsets[row]), known.reason)
                at = offsets[one] - base
                records = decode_columns(data, at, base, path=path, check_crc=verify)
                if sizes is not None and int(records.column("total_size")[0]) != sizes[row]:
                    raise CorruptRecord(path, int(offsets[row]), "not of the size in its unit")
                yield batch_of_records(records), range(row, row + 1)
            except (CorruptRecord, IndexError) as error:
                reason = error.reason if isinstance(error, CorruptRecord) else "no whole record"
                self.problems.append(CorruptRecord(path, int(offsets[row]) - base, reason))


def read_queue(
    log: ReadableLog, queue: QueuePart, offset: int, limit: int, *, verify: bool = False,
    choice: Choice = ALL,
) -> QueuePage:  # fmt: skip
    """Return up to `limit` messages of a queue from `offset` on, of one of its files.

    Below the queue's first offset nothing is left: the page then begins there. A page may be empty
    and `next_offset` still move on (over units without a message). `limit` counts messages that
    have the tags; the times are compared afterwards. The batch has all columns.
    """
    asked = [(queue, offset)]
    batch, (following,), problems = read_queues(log, asked, limit, verify=verify, choice=choice)
    return QueuePage(batch, following, problems)


def read_queues(
    log: ReadableLog, asked: Sequence[tuple[QueuePart, int]], limit: int, *, verify: bool = False,
    choice: Choice = ALL,
) -> tuple[pa.RecordBatch, list[int], list[CorruptRecord]]:  # fmt: skip
    """As `read_queue`, of many queues at once: (messages in log order, next offsets, problems)."""
    parts, spans, following = [], [], []
    missing: list[CorruptRecord] = []
    for queue, offset in asked:
        first = max(offset, queue.min_offset)
        codes = choice.codes(queue.topic)
        units, begins = queue.spans(first, limit if codes is None else queue.max_offset)
        if not len(units) and first < queue.max_offset:  # the file of this offset is missing
            begins = [min(queue.next_file_offset(first), queue.max_offset)]
            if first >= queue.min_offset:  # and was not deleted since, by age
                path, position = queue.place_of_unit(first)
                reason = f"no units for the messages {first} to {begins[0] - 1}"
                missing.append(CorruptRecord(path, position, reason))
        elif codes is not None and len(units):
            units, begins = units_with(units, begins, codes, limit)
        parts.append(units)
        spans.append(begins)
        following.append(begins[len(units)])
    # Joined as bytes: numpy takes the fields of each part apart.
    units = np.frombuffer(b"".join(parts), parts[0].dtype) if len(parts) > 1 else parts[0]
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    places = _Places(log, verify=verify, with_bodies=choice.with_bodies)
    kept: Int64s | None = None  # which units are left, and in which order
    real = (sizes > 0) & (sizes != CQ_PRE_FILL_SIZE) & (offsets >= 0) & (offsets < places.end)
    if np.count_nonzero(real) != len(real):
        for (queue, _), units, begins in zip(asked, parts, spans, strict=True):
            places.problems += _wrong_units(queue, units, begins, places.end)
        kept = np.flatnonzero(real)
        offsets, sizes = offsets[kept], sizes[kept]
    if len(parts) > 1 or np.count_nonzero(offsets[1:] < offsets[:-1]):
        order = np.argsort(offsets)
        offsets, sizes = offsets[order], sizes[order]
        kept = order if kept is None else kept[order]
    owners = _Owners([queue for queue, _ in asked], [*map(len, parts)], spans, kept)
    batches = [
        owners.own(batch, rows, places.problems) for batch, rows in places.each(offsets, sizes)
    ]
    batch = _joined(batches)
    return choice.rows_of(batch), following, [*missing, *places.problems, *_lost_in(log, batch)]


def _lost_in(log: ReadableLog, batch: pa.RecordBatch) -> Iterator[CorruptRecord]:
    """Yield an error for each stand-in of a lost message."""
    lost = lost_rows(batch.column(_MARK).to_numpy())
    if lost is None:
        return
    for offset in batch["physical_offset"].filter(lost).to_pylist():
        file = log.queue.find(offset)
        if file is not None:
            yield CorruptRecord(file.path, offset - file.file_from_offset, LOST_REASON)


class _Owners:
    """Which place each unit of a read has: its record has to have that queue and offset, too."""

    def __init__(
        self, queues: Sequence[QueuePart], counts: Sequence[int], spans: Sequence[Sequence[int]],
        kept: Int64s | None,
    ) -> None:  # fmt: skip
        """`counts` units of each queue begin at `spans`; `kept` of them are read, in that order."""
        self._queues, self._spans, self._counts, self._kept = queues, spans, counts, kept

    @cached_property
    def _numbers(self) -> Int64s:
        """The queue offset of each unit."""
        begins = [
            np.arange(span.start, span.start + count)
            if isinstance(span, range)
            else np.array(span[:count], np.int64)
            for span, count in zip(self._spans, self._counts, strict=True)
        ]
        return begins[0] if len(begins) == 1 else np.concatenate(begins)

    def own(
        self, batch: pa.RecordBatch, rows: range, problems: list[CorruptRecord]
    ) -> pa.RecordBatch:
        """Return the records of the units at `rows` that have their places, and note the rest."""
        first = self._queues[0]
        kept = np.arange(rows.start, rows.stop)
        kept = kept if self._kept is None else self._kept[rows.start : rows.stop]
        numbers = self._numbers[kept]
        differs = batch.column(_QUEUE_OFFSET).to_numpy() != numbers
        if (
            len(self._queues) == 1
            and not np.count_nonzero(differs)
            and _is_all_of(batch, first.topic, first.queue_id)
        ):
            return batch
        ends = np.cumsum(self._counts)
        owners = ends.searchsorted(kept, "right")
        topics = pa.array([queue.topic for queue in self._queues], pa.string())
        ids = np.array([queue.queue_id for queue in self._queues])
        differs |= batch["queue_id"].to_numpy() != ids[owners]
        same = pc.equal(batch["topic"], topics.take(pa.array(owners)))
        differs |= ~same.to_numpy(zero_copy_only=False)
        stays = np.ones(len(kept), bool)
        for row in np.flatnonzero(differs).tolist():
            owner = int(owners[row])
            queue = self._queues[owner]
            record = batch.slice(row, 1).to_pylist()[0]
            number = int(numbers[row])
            reason = foreign_record(
                ((record["topic"], record["queue_id"]), record["queue_offset"]),
                parse_properties(str(record["properties"], "utf-8", "replace")),
                ((queue.topic, queue.queue_id), number),
            )
            if reason is not None:
                problems.append(CorruptRecord(*queue.place_of_unit(number), reason))
                stays[row] = False
        return batch if stays.all() else batch.filter(pa.array(stays))


def _is_all_of(batch: pa.RecordBatch, topic: str, queue_id: int) -> bool:
    """True if all records are of one queue; compares the columns' bytes."""
    count = batch.num_rows
    ids = np.frombuffer(batch.column(_QUEUE_ID).buffers()[1], np.int32, count)
    if np.count_nonzero(ids != queue_id):
        return False
    name = topic.encode()
    _, bounds, text = batch.column(_TOPIC).buffers()
    ends = np.frombuffer(bounds, np.int32, count + 1)
    if ends.item(-1) != count * len(name) or np.count_nonzero(np.diff(ends) != len(name)):
        return False
    # As bytes: two views of different item formats are compared item by item.
    return not count or bool(text.to_pybytes()[: count * len(name)] == name * count)


def _wrong_units(
    queue: QueuePart, units: Any, begins: Sequence[int], end: int
) -> Iterator[CorruptRecord]:
    """Yield what is wrong with units that can point to no record of a log that ends at `end`.

    A fill unit behind the queue's first message is the place of one that the log does not have.
    """
    offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    fill = sizes == CQ_PRE_FILL_SIZE
    wrong = fill | (sizes <= 0) | (offsets < 0) | (offsets >= end)
    for row in np.flatnonzero(wrong).tolist():
        path, position = queue.place_of_unit(begins[row])
        reason = unit_without_record(offsets[row], sizes[row])
        if fill[row]:
            reason = f"a fill unit: the log has no message {begins[row]} of this queue"
        yield CorruptRecord(path, position, reason)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else empty_batch()


def query_keys(
    log: ReadableLog, index: Any, topic: str, keys: Sequence[str], max_count: int,
    *, verify: bool = False, choice: Choice = ALL,
) -> pa.Table:  # fmt: skip
    """Return the messages with these keys, the newest `max_count` of each, oldest first.

    A column `key` comes before those of the records; rows are in the order of the keys. The text is
    compared, not the hash alone. Records that cannot be read are left out. With `verify`, which
    compares the checksums of bodies, too, the first of them is CorruptRecord.
    """
    asked, offsets = index.select_many(key_hashes(topic, keys))
    order = np.lexsort((offsets, asked))
    asked, offsets = asked[order], offsets[order]
    twice = np.zeros(len(asked), bool)
    twice[1:] = (asked[1:] == asked[:-1]) & (offsets[1:] == offsets[:-1])
    asked, offsets = asked[~twice], offsets[~twice]
    texts = pa.array(keys, pa.string())
    distinct, back = np.unique(offsets, return_inverse=True)
    batches, rows = [], [np.empty(0, np.int64)]
    places = _Places(log, verify=verify, with_bodies=choice.with_bodies)
    for batch, part in places.each(distinct, None):
        batches.append(batch)
        rows.append(np.arange(part.start, part.stop))
    if verify and places.problems:
        raise places.problems[0]
    found = _joined(batches)
    place_of = np.full(len(distinct), -1, np.int64)
    place_of[np.concatenate(rows)] = np.arange(found.num_rows)
    at = place_of[back]
    kept = np.flatnonzero(at >= 0)
    asked, at = asked[kept], at[kept]
    matching = _has_key(found, topic, at, texts.take(pa.array(asked)))
    wanted = choice.mask(found) if found.num_rows else None
    if wanted is not None:
        matching &= wanted[at]
    asked, at = asked[matching], at[matching]
    newest = ranks(asked[::-1])[::-1] < max_count
    asked, at = asked[newest], at[newest]
    table = pa.Table.from_batches([found.select(choice.columns or found.schema.names)])
    table = table.take(pa.array(at))
    return table.add_column(0, pa.field("key", pa.string(), False), texts.take(pa.array(asked)))


def _has_key(found: pa.RecordBatch, topic: str, at: Int64s, keys: pa.Array) -> Any:
    """Return a mask of the pairs (row of `found`, key) where the record has this topic and key."""
    records = RecordColumns(b"", np.arange(found.num_rows), 0)
    records.take_columns({}, [], np.empty(0, np.int64), found["properties"])
    raw = records.property_bytes
    owners, starts, ends = records.key_places
    counts = np.bincount(owners, minlength=found.num_rows)
    first = np.concatenate(([0], np.cumsum(counts)))
    # Each pair is compared with all keys of its record.
    pairs = np.repeat(np.arange(len(at)), counts[at])
    places = np.arange(len(pairs)) - np.repeat(
        np.concatenate(([0], np.cumsum(counts[at])))[:-1], counts[at]
    ) + first[at][pairs]  # fmt: skip
    texts = slices(raw, starts, ends - starts)
    same = pc.equal(
        texts.take(pa.array(places)), keys.cast(pa.large_binary()).take(pa.array(pairs))
    ).to_numpy(zero_copy_only=False)
    matching = np.zeros(len(at), bool)
    matching[pairs[same.astype(bool)]] = True
    right = pc.equal(found["topic"], topic).to_numpy(zero_copy_only=False)
    return matching & right[at].astype(bool)
