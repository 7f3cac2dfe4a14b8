"""Files of a shard that are missing: found by what is left, and no offset is given out twice.

A file between two others that is gone leaves a gap, and the shard is refused. At the beginning or
at the end its place is known from the checkpoint, which records where both streams begin and end
(`checkpoint.py`), and from what the other stream has:

| missing                          | what is done                                                  |
| -------------------------------- | ------------------------------------------------------------- |
| the oldest data files            | reported at each opening, until retention comes to that place |
| the oldest index files           | made again from the records, if the checkpoint names them     |
| ... which no checkpoint names    | reported: TubeMQ's retention removes them before their data   |
| the newest files, or their ends  | zeros and entries that point to them keep the places          |
| all data files                   | new ones begin behind the offsets that were given out         |

TubeMQ's own retention records nothing: what it removed since the checkpoint is reported, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from os.path import dirname

import numpy as np

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.record.layouts import INDEX_ENTRY, RECORD_SIZE_MAX, record_size
from tubestore.record.names import (
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    STORE_FILE,
    segment_name,
)
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    entries_in,
    entry_of,
    inspect,
    lost_entry,
)
from tubestore.segments.cache_formats import Checkpoint
from tubestore.segments.checkpoint import recorded
from tubestore.segments.digests import digests_path, drop_digests
from tubestore.segments.file_store import Damage, MsgFileStore
from tubestore.segments.reconcile import SetAside
from tubestore.segments.segment import FileSegment

log = logging.getLogger(__name__)


def missing_begin(
    directory: str, found: Checkpoint, *, index_start: int, data_start: int
) -> list[CorruptRecord]:
    """Return what is missing before the first files of a shard, by its checkpoint."""
    problems = []
    index_directory = join(directory, INDEX_DIRECTORY)
    for begin, end, start, parent, suffix in (
        (found.data_start, found.data_end, data_start, directory, DATA_SUFFIX),
        (found.index_start, found.index_end, index_start, index_directory, INDEX_SUFFIX),
    ):
        end = min(start, end)  # what was not synced, a power cut can have taken
        if 0 <= begin < end:
            text = f"the file is missing: the checkpoint has the bytes from {begin} to {end}"
            text += ", and no retention of ours removed them"
            problems.append(CorruptRecord(join(parent, segment_name(begin, suffix)), 0, text))
    return problems


def go_on_behind_lost_files(
    files: MsgFileStore, journalled: Sequence[tuple[int, int]], now_ms: int
) -> list[CorruptRecord]:
    """Have a shard without any data file begin behind the offsets that it gave out.

    `journalled`: where the parts begin that a journal has of it, (index, data): those are put back
    there. Returns the problem, if data files are missing.
    """
    if len(files.data):
        return []
    found = recorded(files.vfs, files.directory)
    index_end, data_end = _ends_by_index(files)
    if found is not None and found.digest:
        index_end, data_end = max(index_end, found.index_end), max(data_end, found.data_end)
    if not (index_end and data_end):
        return []
    if journalled:
        index_end, data_end = journalled[0]
    problems = []
    if found is None or not 0 <= found.data_start < data_end:  # else it is reported later
        path = files.index.last.path if len(files.index) else files.directory
        text = f"index entries without any data; messages below offset {index_end} are lost"
        problems.append(CorruptRecord(path, 0, text))
        log.error("%s", problems[0])
    files.create_directories()
    if not len(files.index):
        files.index.create(index_end)
    _expire_entries(files, index_end, data_end, SetAside(files, now_ms))
    _fill_index(files, index_end, data_end - HEADER_SIZE - 1, HEADER_SIZE + 1)
    files.data.create(data_end)
    files.distrust_directories()
    return problems


def _ends_by_index(files: MsgFileStore) -> tuple[int, int]:
    """Return where the index ends, and the data that its entries point to."""
    index_end = data_end = 0
    for segment in files.index:
        entries = entries_in(segment.view(segment.end))
        starts, sizes = (entries[name].astype(np.int64) for name in ("data_offset", "data_size"))
        possible = (starts >= 0) & (starts < 1 << 62) & (sizes > 0) & (sizes <= RECORD_SIZE_MAX)
        data_end = max(data_end, int((starts + sizes)[possible].max(initial=0)))
        index_end = segment.start + ENTRY_SIZE * len(entries)
    return index_end, data_end


def _expire_entries(
    files: MsgFileStore, index_end: int, data_end: int, set_aside: SetAside
) -> None:
    """Have every index entry below `index_end` point below `data_end`.

    Behind an entry that points elsewhere (a damaged one, or zeros that a power cut left) recovery
    would give the offsets out again.
    """
    lost = lost_entry(files.store_id, max(data_end - HEADER_SIZE - 1, 0), HEADER_SIZE + 1)
    for segment in files.index.between(files.index.start, index_end):
        entries = entries_in(segment.view(segment.end))[: (index_end - segment.start) // ENTRY_SIZE]
        starts, sizes = (entries[name].astype(np.int64) for name in ("data_offset", "data_size"))
        expired = (starts >= 0) & (sizes > HEADER_SIZE) & (starts <= data_end - sizes)
        others = np.flatnonzero(~expired)
        if len(others):
            first, end = int(others[0]), int(others[-1]) + 1
            written = entries[first:end].copy()
            written[~expired[first:end]] = np.frombuffer(lost, written.dtype)[0]
            set_aside.copy(segment, segment.start + ENTRY_SIZE * first)
            segment.restore(written.tobytes(), segment.start + ENTRY_SIZE * first)


def _fill_index(files: MsgFileStore, end: int, data_offset: int, size: int) -> int:
    """Write entries of lost messages up to an index offset; returns how many."""
    last = files.index.last
    count = max(0, end - last.end) // ENTRY_SIZE
    if count:
        entry = lost_entry(files.store_id, max(data_offset, 0), size)
        last.restore(entry * count, last.end)
    return count


def ends_missing(files: MsgFileStore, found: Checkpoint) -> int:
    """Return how many messages at the end the checkpoint has and the index lacks."""
    if not found.digest or not len(files.data):
        return 0
    return max(0, found.index_end - files.index.end) // ENTRY_SIZE


def keep_lost_end(files: MsgFileStore, found: Checkpoint) -> Damage | None:
    """Keep the places of messages at the end that the checkpoint has and the files lack."""
    count = ends_missing(files, found)
    if not count:
        return None
    last, start = files.data.last, files.data.end
    end = max(found.data_end, start + count * (HEADER_SIZE + 1))
    last.restore(b"\0", end - 1)
    if not len(files.index):
        files.index.create(0)
    _fill_index(files, found.index_end, start, end - start)
    return Damage(start, end, f"{count} messages that were synced are missing at the end")


def make_first_index_files(files: MsgFileStore, found: Checkpoint | None) -> CorruptRecord | None:
    """Make the oldest index files again from the records; returns what was missing.

    As one file. Nothing is made without a checkpoint that names them, or where a record is damaged.
    """
    first = files.index.now.first
    if first is None or not may_be_missing(files.vfs, files.directory, first.start, found):
        return None
    entry = bytes(first.read(first.start, ENTRY_SIZE))
    data = ((segment.start, segment.view(segment.end)) for segment in files.data)
    hidden, whole = hidden_entries(first.start, entry, data)
    if not hidden:
        return None
    begin = first.start - ENTRY_SIZE * len(hidden)
    if not whole or found is None or not 0 <= found.index_start <= begin:
        return CorruptRecord(first.path, 0, hidden_text(len(hidden)))
    path = write_first_index(files.vfs, files.directory, begin, hidden)
    segment = FileSegment(
        files.vfs.open(path), begin, ENTRY_SIZE * len(hidden), sealed=True, vfs=files.vfs
    )
    files.index.now = files.index.now.having(segment)
    text = f"{len(hidden)} messages had no index file: it was made again from their records"
    return CorruptRecord(path, 0, text)


def index_path(directory: str, start: int) -> str:
    """Return the path of the index file of a shard that begins at an offset."""
    return join(join(directory, INDEX_DIRECTORY), segment_name(start, INDEX_SUFFIX))


def write_first_index(vfs: Vfs, directory: str, start: int, entries: Sequence[bytes]) -> str:
    """Write an index file of a shard, whole or not at all; returns its path."""
    path = index_path(directory, start)
    drop_digests(vfs, digests_path(path, start))
    vfs.replace_file(path, b"".join(entries))
    return path


def may_be_missing(vfs: Vfs, directory: str, index_start: int, found: Checkpoint | None) -> bool:
    """Whether an index file can be missing before the first one, by what is recorded.

    In a store that is TubeMQ's alone nothing is: its retention removes an index before the data.
    """
    if found is not None and found.index_start >= 0:
        return found.index_start < index_start
    store = join(join(dirname(directory), OWN_DIRECTORY), STORE_FILE)
    return index_start > 0 and vfs.exists(store)


def hidden_text(count: int) -> str:
    """Return what is wrong with records before the first index entry."""
    return (
        f"{count} or more intact messages stand before the first index entry: an index file is "
        "missing, or a TubeMQ broker's retention removed it before the data"
    )


def hidden_entries(
    index_start: int, first_entry: bytes, data: Iterable[tuple[int, memoryview]]
) -> tuple[list[bytes], bool]:
    """Return the entries of records before the first index file, and whether they are all.

    They are if the records follow each other up to that file without damage. `data`: where each
    data file starts, and its bytes; `first_entry` is empty in an empty index file.
    """
    found: list[bytes] = []
    expected: int | None = None
    for start, view in data:
        begins = expected is None and len(first_entry) == ENTRY_SIZE
        if begins and INDEX_ENTRY.unpack_from(first_entry).data_offset <= start:
            return found, False
        at = 0
        while at < len(view):
            header, reason = inspect(view, at, len(view))
            own = header.queue_logic_offset if reason is None else -1
            if expected is None and 0 <= own < index_start and not own % ENTRY_SIZE:
                expected = own
            if own != expected or own == index_start:
                return found, own == index_start == expected
            found.append(entry_of(header, start + at))
            expected = own + ENTRY_SIZE
            at += record_size(header)
    return found, expected == index_start
