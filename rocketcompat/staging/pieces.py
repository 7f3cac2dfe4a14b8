"""Jobs that put ready-made records behind the log: their staged files and commit records.

    <root>/.tubestore/staging/<job>/<name>.log    records one behind the other, not placed yet
                                   /<name>.rows   a row a record: its bytes, its queue in the piece,
                                                  what its unit and its index items are made of
                                   /at-<offset>   what becomes part of the log, placed
    <root>/.tubestore/commits, published.json, jobs.json: as in `tubestore.staging.commit_records`

Always true:
- a record is made before a byte of its job is in the log, and the job is finished after the last;
- until then readers see the log up to where its job begins.

Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import xxhash

from rocketcompat.formats import offset_name
from tubestore.core.paths import join
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import WriterLock
from tubestore.errors import InvalidMessage
from tubestore.staging.behind import WINDOW_BYTES, is_free
from tubestore.staging.commit_records import JobRecords
from tubestore.staging.job_files import VERSION, Batch, staging_directory

LOG_SUFFIX, ROWS_SUFFIX = ".log", ".rows"
#: The content of a file of rows: bytes of the record, number of its queue (-1: it takes none),
#: and what queues and index get of it; behind the rows the hashes of all keys, in their order.
ROW = np.dtype(
    [
        ("size", "<i4"), ("queue", "<i4"), ("sys_flag", "<i4"), ("keys", "<i4"),
        ("tags_code", "<i8"), ("store_timestamp", "<i8"),
    ]
)  # fmt: skip
KEY_HASH = np.dtype("<i4")
#: Records are staged, described and placed about so many bytes at a time.
BLOCK_BYTES = WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """Records that one task wrote, in their order; small and plain, pickled or sent as JSON."""

    name: str
    rows: int
    size: int
    #: (topic, queue id), by the numbers in the rows.
    queues: tuple[tuple[str, int], ...]
    #: (records, bytes, xxh3) of what was written at a time.
    blocks: tuple[tuple[int, int, str], ...]
    rows_digest: str
    #: How many keys are indexed.
    keys: int
    #: True if the rows have all that queues and index get: no record has further units, or one
    #: that the store time changes.
    is_plain: bool
    #: True if the records bring their store time; else all get that of the publishing.
    has_times: bool
    #: True if they bring the time at which they were made; else it is the store time.
    has_born: bool
    #: `content_of` its messages; 0 in descriptions of earlier versions.
    content: int = 0

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """Names, in the job's staging directory, and bytes of its files."""
        return (self.name + LOG_SUFFIX, self.size), (
            self.name + ROWS_SUFFIX,
            self.rows * ROW.itemsize + self.keys * KEY_HASH.itemsize,
        )

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: StagedPiece | Mapping[str, Any]) -> StagedPiece:
        """Take what `as_json` returned, or raise InvalidMessage."""
        if isinstance(given, StagedPiece):
            return given
        try:
            values = {**given}
            values["queues"] = tuple((str(topic), int(queue)) for topic, queue in values["queues"])
            values["blocks"] = tuple((int(n), int(size), str(d)) for n, size, d in values["blocks"])
            piece = cls(**values)
            for field in fields(cls):
                kind = type(getattr(piece, field.name)).__name__
                if kind != str(field.type).partition("[")[0]:
                    raise TypeError(f"{field.name} is no {field.type}")
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidMessage(f"not the description of a staged piece: {error}") from error
        rows, size = sum(b[0] for b in piece.blocks), sum(b[1] for b in piece.blocks)
        if "/" in piece.name or piece.rows < 1 or (rows, size) != (piece.rows, piece.size):
            raise InvalidMessage(f"staged piece {piece.name!r}: impossible values")
        return piece


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of a job and their place: a file of the log, or the continuation of the live file."""

    #: Of the log's file, relative to the root.
    path: str
    #: Physical offset of the first byte.
    start: int
    #: Bytes of records, without the blank behind them, and their xxh3.
    size: int
    digest: str
    #: Bytes of the staged file, its hole included: the log's file size if it is a whole one.
    file_bytes: int

    @property
    def name(self) -> str:
        """Of the staged file."""
        return f"at-{offset_name(self.start)}"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A job that is in the log: physical offsets [start, end)."""

    number: int
    job_id: str
    time_ms: int
    rows: int
    start: int
    end: int
    file_size: int
    parts: tuple[LogPart, ...]
    #: Of a query's micro-batch.
    batch: Batch | None = None
    #: `content_sum` of its pieces; in records of earlier versions "".
    content: str = ""

    @property
    def data_size(self) -> int:
        """Bytes of the log that it takes, blanks included."""
        return self.end - self.start

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file."""
        return {"version": VERSION, "features": [], "log": True, **asdict(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> LogRecord:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        names = {field.name for field in fields(cls)} - {"parts", "batch", "content"}
        return cls(
            **{name: content[name] for name in names},
            parts=tuple(LogPart(**part) for part in content["parts"]),
            batch=Batch.from_json(content.get("batch")),
            content=str(content.get("content", "")),
        )


class LogRecords(JobRecords[LogRecord]):
    """The records of a log's jobs."""

    def __init__(self, vfs: Vfs, root: str, writer: WriterLock | None = None) -> None:
        super().__init__(vfs, root, LogRecord.from_json, writer=writer)

    def hidden_from(self, finished: int) -> int | None:
        """Return where the part that a reader must not show begins; None if it shows all.

        `finished` was read before the log's files were listed: a job has its record before it has a
        byte in them, so one that came meanwhile is hidden as well.
        """
        record = self.read(finished + 1)
        return None if record is None or not record.parts else record.start


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a part of a recorded job is, and why the job cannot go on, if so."""

    part: LogPart
    is_staged: bool
    obstacle: str | None = None


def places_of(vfs: Vfs, root: str, record: LogRecord) -> list[PartPlace]:
    """Return the place of every part of a job. Reads only."""
    return [_place_of(vfs, root, record, part) for part in record.parts]


def _place_of(vfs: Vfs, root: str, record: LogRecord, part: LogPart) -> PartPlace:
    staged, final = join(staging_directory(root, record.job_id), part.name), join(root, part.path)
    if not vfs.exists(staged):
        gone = None if vfs.exists(final) else f"{staged} is gone"
        return PartPlace(part, False, gone)
    begins = part.start % record.file_size
    if not vfs.exists(final):
        return PartPlace(part, True, f"{final} is gone" if begins else None)
    if is_free(vfs, staged, final, begins, part.size):
        return PartPlace(part, True)
    text = f"another process has written behind {record.start} of the log, in {final}"
    return PartPlace(part, True, text)


def digest_of(data: Any) -> str:
    """Return the xxh3 of some bytes, as descriptions contain it."""
    return xxhash.xxh3_64_hexdigest(data)
