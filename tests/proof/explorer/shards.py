"""A reader of shard files that shares no code with the engine but the layouts.

It takes what recovery left at its word: every entry has its record, every record its entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from posixpath import basename
from typing import Any

from tests.proof.explorer.book import Book
from tests.proof.explorer.invariants import Found, found_row
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.offline.check import Reason, check
from tubestore.record.layouts import (
    CHECKSUM_MASK,
    DATA_HEADER,
    FLAG_HAS_ATTRIBUTES,
    INDEX_ENTRY,
    TOKEN_MESSAGE,
)


def read_shards(
    vfs: Vfs, root: str, book: Book, *, damage_allowed: bool, damaged: set[str] | None = None
) -> list[Found]:
    """Return every message in the shards of a root, by shard and in index order.

    The directories of shards with damage are added to `damaged`.
    """
    found: list[Found] = []
    for name, is_directory, _ in vfs.entries(root):
        if is_directory and not name.startswith("."):
            rows, whole = _read_shard(vfs, f"{root}/{name}", name, book, damage_allowed)
            found += rows
            if damaged is not None and not whole:
                damaged.add(f"{root}/{name}")
    return found


def check_agrees(vfs: Vfs, root: str, problems: Iterable[CorruptRecord], damaged: set[str]) -> None:
    """What `check` finds after a recovery is what lies there, and what was reported lies there.

    Recovery also reports entries without any data; those it cuts.
    """
    # Caches are not synced: a torn one is ignored, and says nothing of the files.
    found = check(root, vfs=vfs, wait=lambda seconds: None)
    findings = [f for f in found if f.reason is not Reason.STALE_CACHE]
    assert {_shard_of(f.path) for f in findings} == damaged, f"{damaged}, check finds {findings}"
    reported = {_shard_of(p.path) for p in problems if "/index/" not in p.path}
    assert reported <= damaged, f"{damaged}, recovery reported {reported}: {problems}"
    return reported


def _shard_of(path: str) -> str:
    """Return the directory of the shard that a file of it is in."""
    return path.removesuffix(f"/index/{basename(path)}").removesuffix(f"/{basename(path)}")


def index_end(vfs: Vfs, directory: str) -> int:
    """Return where the next entry of a shard belongs."""
    files = vfs.entries(f"{directory}/index")
    return max((int(n.removesuffix(".index")) + size for n, _, size in files), default=0)


def _stream(vfs: Vfs, directory: str, suffix: str) -> tuple[int, bytes]:
    parts: list[bytes] = []
    start = end = -1
    for name, is_directory, _ in vfs.entries(directory):
        if is_directory or not name.endswith(suffix):
            continue
        first = int(name.removesuffix(suffix))
        assert end in (-1, first), f"{directory}: gap or overlap before {name}"
        start = first if start < 0 else start
        parts.append(vfs.read_file(f"{directory}/{name}"))
        end = first + len(parts[-1])
    return max(start, 0), b"".join(parts)


def _read_shard(
    vfs: Vfs, directory: str, name: str, book: Book, damage_allowed: bool
) -> tuple[list[Found], bool]:
    """Return the rows of a shard, and whether all of its rows and bytes are whole."""
    topic, store_id = name.rsplit("-", 1)
    data_start, data = _stream(vfs, directory, ".tube")
    index_start, index = _stream(vfs, f"{directory}/index", ".index")
    assert len(index) % INDEX_ENTRY.size == 0, f"{directory}: part of an index entry is left"
    found = []
    covered = 0
    for place in range(0, len(index), INDEX_ENTRY.size):
        entry = INDEX_ENTRY.unpack_from(index, place)
        if not found and 0 <= entry.data_offset < data_start:
            continue  # retention removed its data, and its file has entries whose data is there
        body = _body(data, entry.data_offset - data_start, entry, index_start + place)
        assert body is not None or damage_allowed, f"{directory}: no record for {entry}"
        if body is not None:
            assert entry.partition_id // 10_000 == int(store_id), f"{directory}: foreign {entry}"
            covered += entry.data_size
        found.append(found_row(book, topic, entry.partition_id, index_start + place, body))
    # What is torn has nothing intact behind it, and is cut.
    assert not found or found[-1].state == "ok", f"{directory}: ends with damage, {found[-1]}"
    loose = len(data) - covered
    assert not loose or damage_allowed, f"{directory}: {loose} bytes are in no entry"
    return found, not loose and all(row.state == "ok" for row in found)


def _body(data: bytes, position: int, entry: Any, index_offset: int) -> bytes | None:
    """Return the body of the record that an entry points to, None if it is not a whole one."""
    if not 0 <= position <= len(data) - DATA_HEADER.size:
        return None
    header = DATA_HEADER.unpack_from(data, position)
    payload = data[position + DATA_HEADER.size : position + entry.data_size]
    good = (
        header.token == TOKEN_MESSAGE
        and header.length == entry.data_size - 4
        and header.queue_logic_offset == index_offset
        and header.partition_id == entry.partition_id
        and header.checksum == zlib.crc32(payload) & CHECKSUM_MASK
    )
    if not good:
        return None
    if header.flag & FLAG_HAS_ATTRIBUTES:
        return payload[4 + int.from_bytes(payload[:4], "big") :]
    return payload
