"""The log and the queues of a directory as rows, whatever state they are in.

A part that cannot be read is a row with a `state`, never left out:

| state | in `dump_log` |
| --- | --- |
| ok | a sound record |
| lost | a record that `repair` wrote where a message was lost; its body is null |
| damaged | a region without sound records, with sound ones behind it |
| missing | the log's file of this region is not there |
| torn | the last record, not whole |
| still-compressed | a sound record with a body that could not be unpacked |

The states of queue units are `queues.UNIT_STATES`.

`Tail` reads the end of the log: the last records, and those that a running broker appends. It
needs nothing of the writer: the chain is followed as far as sound records go, and followed again a
moment later.

Reads only; works on a store that will not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import (
    BATCH_CQ_UNIT,
    MAGIC_V1,
    MESSAGE_FIELD_COLUMNS,
    STATE_OK,
    decode_host,
    message_id,
    parse_properties,
)
from rocketcompat.inspect.batch_queues import BatchQueueView
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.queues import AnyQueueView, QueueView
from rocketcompat.inspect.selection import Selection
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.compression import unpack_bodies
from rocketcompat.record.message_table import bodies_of, states_of, table_of
from rocketcompat.record.rows import MESSAGE_SCHEMA, table_of_rows, unreadable_row
from tubestore.clock import Clock

Counted = Callable[[int], None]
EVERYTHING = Selection()

_NAMES = MESSAGE_SCHEMA.names


#: A body that is flagged as compressed and could not be unpacked; it is shown as stored.
STATE_STILL_COMPRESSED = "still-compressed"


def dump_log(
    directory: StoreDirectory, wanted: Selection = EVERYTHING, count: Counted = lambda _: None
) -> Iterator[dict[str, Any]]:
    """Yield a row a record of the CommitLog that is wanted, in order.

    `count` is called with the number of records that were examined, when their rows are taken.
    """
    for piece in _pieces(directory, wanted):
        if isinstance(piece, Gap):
            yield unreadable_row(piece.start, piece.end - piece.start, piece.state)
            continue
        found = wanted.of(piece)
        counted = 0
        places = np.searchsorted(piece.starts, found.starts) + 1
        rows = message_rows(found, unpack=wanted.unpack)
        for row, place in zip(rows, places.tolist(), strict=True):
            yield row
            count(place - counted)
            counted = place
        count(len(piece) - counted)


def dump_tables(
    directory: StoreDirectory, wanted: Selection = EVERYTHING, count: Counted = lambda _: None
) -> Iterator[pa.Table]:
    """As `dump_log`, in tables of `rows.MESSAGE_SCHEMA`."""
    for piece in _pieces(directory, wanted):
        if isinstance(piece, Gap):
            yield table_of_rows([unreadable_row(piece.start, piece.end - piece.start, piece.state)])
            continue
        count(len(piece))
        found = wanted.of(piece)
        if len(found):
            yield from _unpacked_tables(found) if wanted.unpack else [table_of(found)]


def message_rows(records: RecordColumns, *, unpack: bool = False) -> Iterator[dict[str, Any]]:
    """Yield records as rows, with their bodies as the producers had them if `unpack`."""
    if not unpack:
        return rows_of(records)
    tables = _unpacked_tables(records)
    return chain.from_iterable(table.to_pylist(maps_as_pydicts="strict") for table in tables)


def _pieces(directory: StoreDirectory, wanted: Selection) -> Iterator[RecordColumns | Gap]:
    """Yield the part of the log that may hold wanted records."""
    for piece in directory.scan_log(wanted.start, wanted.end, since=wanted.begin):
        if isinstance(piece, Gap) and piece.state == "stale":
            return  # behind the end, and no part of the log any more
        yield piece


def _unpacked_tables(records: RecordColumns) -> Iterator[pa.Table]:
    """Yield records with their bodies as the producers had them, a table a run."""
    for rows, bodies, failed in unpack_bodies(records.bodies(), records.column("sys_flag")):
        part = RecordColumns(records.data, records.starts[rows], records.base, records.path)
        yield table_of(part, bodies, np.where(failed, STATE_STILL_COMPRESSED, STATE_OK).tolist())


def rows_of(records: RecordColumns) -> Iterator[dict[str, Any]]:
    """Yield records as rows (`formats.MESSAGE_COLUMNS`), column by column underneath."""
    numbers = [records.column(name).tolist() for name in MESSAGE_FIELD_COLUMNS]
    topics = [records.topic_names[code] for code in records.topic_codes.tolist()]
    offsets = (records.starts + records.base).tolist()
    sizes = records.column("total_size").tolist()
    versions = [1 if magic == MAGIC_V1 else 2 for magic in records.column("magic_code").tolist()]
    born, store = records.hosts("born_host").to_pylist(), records.hosts("store_host").to_pylist()
    texts, bodies = records.properties().to_pylist(), bodies_of(records).to_pylist()
    states = states_of(records).to_pylist()
    hosts = {raw: decode_host(raw) for raw in {*born, *store}}
    for row, values in enumerate(zip(*numbers, strict=True)):
        found = dict(zip(MESSAGE_FIELD_COLUMNS, values, strict=True))
        found |= {
            "topic": topics[row],
            "physical_offset": offsets[row],
            "store_size": sizes[row],
            "version": versions[row],
            "born_host": hosts[born[row]],
            "store_host": hosts[store[row]],
            "properties": parse_properties(texts[row].decode("utf-8", "replace")),
            "body": bodies[row],
            "msg_id": message_id(store[row], offsets[row]),
            "state": states[row],
        }
        yield {name: found[name] for name in _NAMES}


#: Of a row: queue offset, (physical offset, size, tag hash), state, further columns.
_Unit = tuple[int, tuple[int, int, int], str, dict[str, int]]


def dump_queues(views: Iterable[AnyQueueView]) -> Iterator[dict[str, Any]]:
    """Yield a row a queue."""
    for view in views:
        yield {
            "topic": view.topic,
            "queue_id": view.queue_id,
            "min_offset": view.min_offset,
            "max_offset": view.max_offset,
        }


def dump_units(views: Iterable[AnyQueueView], start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a row a unit, queue by queue, from a queue offset on.

    Of queues of inner batches those that the log still has: the queue offset is that of the first
    message of the record, `messages` how many it holds.
    """
    for view in views:
        if isinstance(view, BatchQueueView):
            rows = _batch_rows(view, start)
        else:
            rows = _rows(view, start)
        for offset, (physical_offset, size, tags_code), state, more in rows:
            yield {
                "topic": view.topic,
                "queue_id": view.queue_id,
                "queue_offset": offset,
                "physical_offset": physical_offset,
                "size": size,
                "tags_code": tags_code,
                "state": state,
                **more,
            }


def _rows(view: QueueView, start: int) -> Iterator[_Unit]:
    skipped = max(start - view.min_offset, 0)
    units, states = view.units[skipped:].tolist(), view.states[skipped:].tolist()
    for offset, (unit, state) in enumerate(
        zip(units, states, strict=True), view.min_offset + skipped
    ):
        yield offset, unit, state, {}


def _batch_rows(view: BatchQueueView, start: int) -> Iterator[_Unit]:
    for unit, state in zip(view.units.tolist(), view.states.tolist(), strict=False):
        row = dict(zip(BATCH_CQ_UNIT.dtype.names or (), unit, strict=True))
        if row["base_offset"] + row["batch_size"] > max(start, view.min_offset):
            yield row["base_offset"], unit[:3], state, {"messages": row["batch_size"]}


#: How long to wait before the log's end is read again, in seconds.
POLL_SECONDS = 0.2


class Tail:
    """The records at the end of a directory's log that are wanted.

    `position` is the physical offset behind the last record that was examined.
    """

    def __init__(self, directory: StoreDirectory, wanted: Selection) -> None:
        self._directory, self._wanted = directory, wanted
        self.position = directory.log.min_offset

    def last(self, count: int) -> list[RecordColumns]:
        """Return the last `count` wanted records, oldest first; files are read from the last on."""
        log = self._directory.log
        found: list[RecordColumns] = []
        left, end = count, log.max_offset
        self.position = 0
        for file in reversed(log.files):
            parts = list(self._read(file.file_from_offset, end))
            for part in reversed(parts):
                kept = part.starts[max(0, len(part) - left) :]
                if left > 0 and len(kept):
                    found.append(RecordColumns(part.data, kept, part.base))
                    left -= len(kept)
            end = file.file_from_offset
            if left <= 0:
                break
        return found[::-1]

    def follow(
        self, clock: Clock, sleep: Callable[[float], None], idle_timeout: float | None = None
    ) -> Iterator[RecordColumns | None]:
        """Yield wanted records as they are appended, None before each wait; for ever.

        With `idle_timeout` it ends when nothing was appended for so many seconds. Where a
        broker has removed files in between, it goes on with what is left.
        """
        log = self._directory.log
        last_seen = clock.monotonic()
        while True:
            log.refresh()
            before = self.position
            yield from self._read(max(before, log.min_offset), log.max_offset, chained=True)
            now = clock.monotonic()
            last_seen = now if self.position != before else last_seen
            if idle_timeout is not None and now - last_seen >= idle_timeout:
                return
            yield None
            sleep(POLL_SECONDS)

    def _read(self, start: int, end: int, *, chained: bool = False) -> Iterator[RecordColumns]:
        for piece in self._directory.scan_log(start, end, chained=chained):
            if isinstance(piece, Gap):
                if piece.state not in ("torn", "stale"):
                    self.position = max(self.position, piece.end)
                continue
            behind = piece.records_end
            self.position = max(self.position, behind)
            found = self._wanted.of(piece)
            if len(found):
                yield found
