"""Which messages of a journal the files of their shards lack.

A ring that `store.json` does not announce was being removed when the process was killed: then the
shards have all of it. Otherwise `store.json` is not the one that announced the ring. It was lost,
or it is an older copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.journal.ring_reading import LeftRing, read_unannounced
from tubestore.journal.root_journal import JournalPart
from tubestore.record.names import INDEX_DIRECTORY, INDEX_SUFFIX, parse_segment_name
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import list_files
from tubestore.segments.shard_bytes import ShardBytes


def lacking(vfs: Vfs, root: str, parts: Iterable[JournalPart]) -> dict[str, int]:
    """Return how many messages of a journal's parts have no index entry yet, by shard.

    Not counted is what `redo` leaves: a part behind a gap that only a power cut can have left.
    """
    found: dict[str, int] = {}
    for part, first in _without_entries(vfs, root, parts):
        found[part.shard] = found.get(part.shard, 0) + len(part.entries) - first
    return found


def _without_entries(
    vfs: Vfs, root: str, parts: Iterable[JournalPart]
) -> Iterator[tuple[JournalPart, int]]:
    """Go through the parts with messages beyond a shard's index: (part, the first one's row)."""
    ends: dict[str, int] = {}
    for part in sorted(parts, key=attrgetter("shard", "index_start")):
        if part.shard not in ends:
            ends[part.shard] = _index_end(vfs, join(root, part.shard, INDEX_DIRECTORY))
        known, end = ends[part.shard], part.index_start + ENTRY_SIZE * len(part.entries)
        if end <= known or (part.index_start > known and not part.damaged_before):
            continue
        ends[part.shard] = end
        if not part.lost:
            yield part, max(0, known - part.index_start) // ENTRY_SIZE


def _index_end(vfs: Vfs, directory: str) -> int:
    """Return the index offset behind the last whole entry of a shard's files."""
    files = files_by_start(vfs, directory, partial(parse_segment_name, suffix=INDEX_SUFFIX))
    whole = (start + size // ENTRY_SIZE * ENTRY_SIZE for start, _, size in files)
    return max(whole, default=0)


def _without_records(vfs: Vfs, root: str, parts: Iterable[JournalPart]) -> dict[str, int]:
    """As `lacking`, without the messages that have their records.

    Before a ring goes, the data of its shards are synced. A power cut may then keep the records
    without their entries; the next opening makes these.
    """
    found: dict[str, int] = {}
    for name, mine in groupby(_without_entries(vfs, root, parts), lambda one: one[0].shard):
        with contextlib.closing(ShardBytes(vfs, list_files(vfs, join(root, name)))) as shard:
            count = sum(_count_without_record(shard, *one) for one in mine)
        if count:
            found[name] = count
    return found


def _count_without_record(shard: ShardBytes, part: JournalPart, first: int) -> int:
    count, data = 0, memoryview(part.data)
    for entry in part.entries[first:]:
        offset, size = int(entry["data_offset"]), int(entry["data_size"])
        low = offset - part.data_start
        count += shard.bytes_at(offset, size) != data[low : low + size]
    return count


def stray_ring(vfs: Vfs, root: str) -> LeftRing | None:
    """Return a ring that is not announced, as damage, if shards lack messages of it; else None.

    OSError, BadState.
    """
    left = read_unannounced(vfs, root)
    if left is None:
        return None
    shards = _without_records(vfs, root, left.parts)
    # A writer may have announced it since, and filled it only then.
    if not shards or read_unannounced(vfs, root) is None:
        return None
    path = join(root, OWN_DIRECTORY, STORE_FILE)
    text = (
        f"it records no journal, and {sum(shards.values())} messages of {len(shards)} shards are"
        " only in segments of one: it is an older copy, or was made anew"
    )
    return left._replace(damages=[CorruptRecord(path, 0, text), *left.damages])
