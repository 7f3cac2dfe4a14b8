"""Which messages of a journal the files of their shards lack, by the ends of the indexes.

A ring that `store.json` does not announce was being removed when the process was killed: then the
shards have all of it. Otherwise `store.json` is not the one that announced the ring. It was lost,
or it is an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import attrgetter

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.journal.ring_reading import LeftRing, read_unannounced
from tubestore.journal.root_journal import JournalPart
from tubestore.record.names import INDEX_DIRECTORY, INDEX_SUFFIX, parse_segment_name
from tubestore.record.records import ENTRY_SIZE


def lacking(vfs: Vfs, root: str, parts: Iterable[JournalPart]) -> dict[str, int]:
    """Return how many messages of a journal's parts are not in the files yet, by shard.

    Not counted is what `redo` leaves: a part behind a gap that only a power cut can have left.
    """
    ends: dict[str, int] = {}
    found: dict[str, int] = {}
    for part in sorted(parts, key=attrgetter("shard", "index_start")):
        if part.shard not in ends:
            ends[part.shard] = _index_end(vfs, join(root, part.shard, INDEX_DIRECTORY))
        known, end = ends[part.shard], part.index_start + ENTRY_SIZE * len(part.entries)
        if end <= known or (part.index_start > known and not part.damaged_before):
            continue
        ends[part.shard] = end
        if not part.lost:
            beyond = (end - max(part.index_start, known)) // ENTRY_SIZE
            found[part.shard] = found.get(part.shard, 0) + beyond
    return found


def _index_end(vfs: Vfs, directory: str) -> int:
    """Return the index offset behind the last whole entry of a shard's files."""
    files = files_by_start(vfs, directory, partial(parse_segment_name, suffix=INDEX_SUFFIX))
    whole = (start + size // ENTRY_SIZE * ENTRY_SIZE for start, _, size in files)
    return max(whole, default=0)


def stray_ring(vfs: Vfs, root: str) -> LeftRing | None:
    """Return a ring that is not announced, as damage, if shards lack messages of it; else None.

    OSError, BadState.
    """
    left = read_unannounced(vfs, root)
    if left is None:
        return None
    shards = lacking(vfs, root, left.parts)
    # A writer may have announced it since, and filled it only then.
    if not shards or read_unannounced(vfs, root) is None:
        return None
    path = join(root, OWN_DIRECTORY, STORE_FILE)
    text = (
        f"it records no journal, and {sum(shards.values())} messages of {len(shards)} shards are"
        " only in segments of one: it is an older copy, or was made anew"
    )
    return left._replace(damages=[CorruptRecord(path, 0, text), *left.damages])
