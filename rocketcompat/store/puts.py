"""The way of a message between a caller and the log; RocketMQ's `asyncPutMessage`.

A message is prepared outside of every lock, appended, and handed on to the dispatcher. If its level
asks for it, the put waits. A delayed message is put aside first (`schedule.py`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.commitlog.commit_log import CommitLog, PartPlaced
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.formats import BLANK, encode_host
from rocketcompat.messages import (
    Message,
    MessageBatch,
    PutBatchResult,
    PutResult,
    PutStatus,
)
from rocketcompat.reading.again import put_again
from rocketcompat.record.batches import columns_of_batch, inner_batch
from rocketcompat.record.delays import delayed
from rocketcompat.record.encode import EncodedColumns, encode_columns
from rocketcompat.record.fields import check_fields, fault_of
from rocketcompat.record.given import (
    GivenMessages,
    given_in,
    message_of,
    put_aside,
    rows_alone,
)
from rocketcompat.record.prepare import Prepared, prepare
from rocketcompat.record.properties import PROPERTY_DELAY
from tubestore.clock import SECONDS_OR_MS, Clock, time_ms
from tubestore.core.kernels import Int64s
from tubestore.errors import (
    BatchError,
    DiskFull,
    InvalidMessage,
    MessageTooLarge,
    TubeStoreError,
)

Durability = Literal["page_cache", "fsync"]
_DURABILITIES = (None, "page_cache", "fsync")
#: The pair of a message that does not wait for its sync, in a property string.
_NO_WAIT = "(^|\x02)WAIT\x01false(\x02|$)"
_DOES_NOT_WAIT = re.compile(_NO_WAIT.encode())
#: What the encoding raises for a field of the wrong type.
_UNFIT = (TypeError, AttributeError, OverflowError, UnicodeError, struct.error, pa.ArrowException)
_NONE = np.empty(0, np.int64)
#: A look into an enumeration and the making of a named tuple take a tenth of a single put.
_PUT_OK = PutStatus.PUT_OK
_result: Callable[[tuple[PutStatus, int, int, int, int, bytes]], PutResult] = partial(
    tuple.__new__, PutResult
)

Given = TypeVar("Given", Message, MessageBatch)


def check_durability(durability: Any) -> None:
    """Refuse an invalid level: a misspelt one would be taken for "do not wait"."""
    if durability not in _DURABILITIES:
        raise InvalidMessage(
            f"durability: {durability!r} is none of 'page_cache', 'fsync' and None"
            " (as the store is configured)"
        )


def in_ms(given: Given, clock: Clock) -> Given:
    """Return a message or batch with its time in ms; a number that looks like seconds warns.

    A message that is stored as it is (`NOT_DELAYED`) has its time from a store: that is ms.
    """
    born = given.born_timestamp
    if born is None:
        return given
    if born.__class__ is int and (born not in SECONDS_OR_MS or _is_as_it_was(given)):
        return given
    try:
        number = time_ms(born, "born_timestamp", clock)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(str(error)) from None
    return given if born is number else replace(given, born_timestamp=number)


def _is_as_it_was(given: Message | MessageBatch) -> bool:
    return isinstance(given, Message) and given.delay_level < 0


def _check_batch(batch: Any) -> None:
    if not isinstance(batch, MessageBatch):
        raise InvalidMessage(f"a rocketcompat.MessageBatch is needed, not {type(batch).__name__}")
    check_fields(batch)


class PutPath:
    """Puts into one log; thread-safe. The callers have checked `durability`."""

    def __init__(self, log: CommitLog, dispatcher: ReputMessageService, clock: Clock) -> None:
        self._log, self._dispatcher, self._clock = log, dispatcher, clock
        self._config = log.config
        self._sync_always = self._config.flush_disk_type == "SYNC_FLUSH"
        self._sync_timeout = self._config.sync_flush_timeout / 1000
        #: Waits until a slave has everything below an offset; None: no put waits for slaves.
        self.replicated: Callable[[int], PutStatus] | None = None

    def put(self, message: Message, durability: Durability | None) -> PutResult:
        """Append a message, or put it aside until it is due."""
        if not isinstance(message, Message):
            raise InvalidMessage(f"a rocketcompat.Message is needed, not {type(message).__name__}")
        given = message.properties
        try:
            if message.delay_level or (given is not None and PROPERTY_DELAY in given):
                message = delayed(message, self._config)
        except _UNFIT as error:
            raise fault_of(message, error) from error
        return self.append(message, durability)

    def append(
        self, message: Message, durability: Durability | None = None, *, replicates: bool = True
    ) -> PutResult:
        """Append a message without putting it aside; with `replicates` it may wait for a slave."""
        try:
            prepared = prepare(message, self._config)
        except _UNFIT as error:
            raise fault_of(message, error) from error
        physical_offset, queue_offset, timestamp = self._log.put_one(prepared)
        end = physical_offset + prepared.size
        self._dispatcher.wake_or_help(end)
        status = _PUT_OK
        if durability is not None or self._sync_always or self.replicated is not None:
            status = self._settled(
                durability, end, physical_offset, prepared, replicates=replicates
            )
        return _result(
            (status, physical_offset, queue_offset, prepared.size, timestamp, prepared.store_host)
        )

    def put_columns(self, messages: Any, durability: Durability | None) -> pa.Table:
        """Append many messages given as columns."""
        table = put_aside(given_in(put_again(messages), self._clock), self._config)
        alone = rows_alone(table, self._config)
        if alone:
            return self._put_parts(self._parts(table, alone), durability)
        encoded = encode_columns(table, self._config, have_offsets=True)
        try:
            physical_offsets, queue_offsets, timestamp = self._log.put_columns(encoded)
        except PartPlaced as error:
            raise self._batch_error(error, [], len(encoded), encoded, durability) from error.cause
        self._dispatcher.help_with_columns()
        status = PutStatus.PUT_OK
        if len(encoded):
            first, end = int(physical_offsets[0]), int(physical_offsets[-1] + encoded.sizes[-1])
            status = self._settled(durability, end, first, encoded)
        return _placed(physical_offsets, queue_offsets, encoded.sizes, timestamp, status)

    def _parts(self, table: GivenMessages, alone: list[int]) -> list[Prepared | EncodedColumns]:
        """Return prepared rows, in order: those that go alone, and the columns between them."""
        parts: list[Prepared | EncodedColumns] = []
        for before, row in pairwise((-1, *alone, table.rows)):
            if row > before + 1:
                parts.append(encode_columns(table.part(before + 1, row), self._config))
            if row < table.rows:
                message = message_of(table.part(row, row + 1), self._config)
                parts.append(prepare(message, self._config))
        return parts

    def _put_parts(
        self, parts: list[Prepared | EncodedColumns], durability: Durability | None
    ) -> pa.Table:
        """Append rows, some of which go alone; all of them were checked before."""
        placed: list[tuple[Any, Any, Any]] = []
        rows = sum(1 if isinstance(part, Prepared) else len(part) for part in parts)
        for part in parts:
            try:
                if isinstance(part, Prepared):
                    at, offset, timestamp = self._log.put_one(part)
                    placed.append((np.array([at]), np.array([offset]), np.array([timestamp])))
                else:
                    physical, offsets, timestamp = self._log.put_columns(part)
                    placed.append((physical, offsets, np.full(len(part), timestamp)))
            except PartPlaced as error:
                raise self._batch_error(error, placed, rows, part, durability) from error.cause
            except TubeStoreError as error:
                if not placed:
                    raise
                nothing = PartPlaced(error, _NONE, _NONE, 0)
                raise self._batch_error(nothing, placed, rows, part, durability) from error
        physical, offsets, timestamps = map(np.concatenate, zip(*placed, strict=True))
        # Queue offsets in the properties of those that go alone changed their sizes.
        sizes = [np.array([p.size]) if isinstance(p, Prepared) else p.sizes for p in parts]
        size = np.concatenate(sizes)
        end = int(physical[-1] + size[-1])
        self._dispatcher.wake_or_help(end)
        status = self._settled(durability, end, int(physical[0]), *parts)
        return _placed(physical, offsets, size, timestamps, status)

    def _batch_error(
        self, error: PartPlaced, placed: list[tuple[Any, Any, Any]], rows: int,
        part: Prepared | EncodedColumns, durability: Durability | None,
    ) -> BatchError:  # fmt: skip
        """Return the error for a batch with only its first rows in the log.

        Their acks are rows of `put_columns`' table. They have reached the requested level, or their
        status is FLUSH_DISK_TIMEOUT.
        """
        count = len(error.physical_offsets)
        times = np.full(count, error.timestamp)
        every = [*placed, (error.physical_offsets, error.queue_offsets, times)]
        physical, offsets, timestamps = map(np.concatenate, zip(*every, strict=True))
        self._dispatcher.wake()
        status = PutStatus.PUT_OK
        try:
            if self._waits(durability):
                status = self._synced(self._log.max_offset)
            elif durability == "page_cache":
                self._log.commit()  # what the transient pool has of them
        except TubeStoreError:
            status = PutStatus.FLUSH_DISK_TIMEOUT
        columns = (physical.tolist(), offsets.tolist(), timestamps.tolist())
        names = ("physical_offset", "queue_offset", "store_timestamp")
        acks: list[Any] = [
            {**dict(zip(names, row, strict=True)), "status": status.value}
            for row in zip(*columns, strict=True)
        ]
        failed = BatchError(str(error.cause), [*acks, *[None] * (rows - len(acks))])
        failed.taken = error.cause.taken
        return failed

    def put_batch(self, batch: MessageBatch, durability: Durability | None) -> PutBatchResult:
        """Append a batch: all of it in one file, or nothing."""
        _check_batch(batch)
        try:
            encoded = encode_columns(columns_of_batch(batch, self._config), self._config)
        except _UNFIT as error:
            raise fault_of(batch, error) from error
        size, room = int(encoded.bounds[-1]), self._config.mapped_file_size_commit_log - BLANK.size
        if size > room:
            raise MessageTooLarge(size, room, "batch", "mapped_file_size_commit_log")
        physical, queue_offsets, timestamp = self._log.put_columns(encoded, together=True)
        self._dispatcher.help_with_columns()
        end = int(physical[-1] + encoded.sizes[-1])
        status = self._settled(durability, end, int(physical[0]), encoded)
        return PutBatchResult(
            status, physical.tolist(), encoded.sizes.tolist(), int(queue_offsets[0]), timestamp,
            encode_host(batch.store_host or self._config.store_host),
        )  # fmt: skip

    def put_inner_batch(self, batch: MessageBatch, durability: Durability | None) -> PutResult:
        """Append a batch as one record of a topic of batches."""
        _check_batch(batch)
        try:
            message = inner_batch(batch, self._config)
        except _UNFIT as error:
            raise fault_of(batch, error) from error
        return self.append(message, durability)

    def _settled(
        self, durability: Durability | None, end: int, offset: int,
        *parts: Prepared | EncodedColumns, replicates: bool = True,
    ) -> PutStatus:  # fmt: skip
        """Bring what was put to its level and to a slave; the slave's status counts, as upstream.

        Messages with WAIT=false wait for neither.
        """
        waits = self._waits(durability) and any(self._any_waits(durability, p) for p in parts)
        status = self._reached(durability, waits, end, offset)
        replicated = self.replicated
        if replicated is None or not replicates:
            return status
        if not any(self._any_waits(None, part) for part in parts):
            return status
        found = replicated(end)
        return status if found is PutStatus.PUT_OK else found

    def _waits(self, durability: Durability | None) -> bool:
        return durability == "fsync" or (self._sync_always and durability is None)

    @staticmethod
    def _any_waits(durability: Durability | None, part: Prepared | EncodedColumns) -> bool:
        """True if a put waits for its sync; not if all its messages have WAIT=false."""
        if durability is not None:
            return True
        if isinstance(part, Prepared):
            # The property string follows its length of 2 bytes.
            return _DOES_NOT_WAIT.search(part.properties[2:]) is None
        return not pc.all(pc.match_substring_regex(part.property_texts, _NO_WAIT)).as_py()

    def _reached(
        self, durability: Durability | None, waits: bool, end: int, offset: int
    ) -> PutStatus:
        """Bring what was put up to `end` to its level, or raise the reason why not.

        In either case the message is at `offset`, and the error has that.
        """
        try:
            if waits:
                return self._synced(end)
            if durability == "page_cache" and self._log.commit():
                self._dispatcher.wake()
        except DiskFull as error:
            error.taken, error.offset = "yes", offset
            raise
        except TubeStoreError as error:
            error.taken = "unknown"
            raise
        return PutStatus.PUT_OK

    def _synced(self, end: int) -> PutStatus:
        done = self._log.sync_to(end, self._sync_timeout)
        return PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT


def _placed(
    physical: Int64s, offsets: Int64s, sizes: Int64s, timestamps: Any, status: PutStatus
) -> pa.Table:
    """Return the places of messages, a row each."""
    count = len(physical)
    if not isinstance(timestamps, np.ndarray):
        timestamps = pa.repeat(pa.scalar(timestamps, pa.int64()), count)
    codes = pa.repeat(pa.scalar(0, pa.int8()), count)
    return pa.table(
        {
            "physical_offset": physical,
            "queue_offset": offsets,
            "size": sizes,
            "store_timestamp": timestamps,
            "status": pa.DictionaryArray.from_arrays(codes, [status.value]),
        }
    )
