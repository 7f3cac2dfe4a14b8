"""Search a store for damage without opening it, without a lock and without writing a byte.

    for finding in check("data"):
        print(finding.path, finding.position, finding.reason, finding.message)

Verified is everything that files can show:
- names and lengths, and that segments touch
- that every entry matches its record
- checksums, and that every byte of data has an entry
- the files in `.tubestore/`, and jobs that are half published

Damage that only a digest can show (for example a bit of a sender's address) is found in sealed
files that this package has written.

A store that is being written has bytes in flight at its ends. A second look distinguishes them from
damage: what has moved or gone after a while is not damage (decisions.md D9).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from os.path import basename

from tubestore.core.paths import checked_root
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import NotAStore
from tubestore.offline.bytes_read import BytesRead, Watch
from tubestore.offline.digest_check import check_digests
from tubestore.offline.findings import REASONS, Finding
from tubestore.offline.own_files import (
    check_checkpoint,
    check_directories,
    check_files,
    check_register,
    check_state,
    check_stores,
    known_holes,
    read_bounds,
)
from tubestore.record.names import DATA_SUFFIX, INDEX_SUFFIX, segment_name
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import Bounds
from tubestore.segments.cache_formats import DIGEST_BLOCK_BYTES, NEVER_SYNCED
from tubestore.segments.checkpoint import joined, read_recorded
from tubestore.segments.inspection import Reason, walk
from tubestore.segments.listing import ShardFiles, StoredFile, find_shards, list_shard
from tubestore.segments.shard_bytes import misplaced_files

__all__ = ["REASONS", "Finding", "Reason", "check"]

#: How often, and after how many seconds, findings at the end of a stream are checked again.
_LOOKS = 4
_PAUSE = 0.1
#: Findings that may be bytes in flight and are held until they are checked again.
HELD_FINDINGS_MAX = 10_000
_OF_INDEX = {Reason.BAD_ENTRY, Reason.ENTRY_DIFFERS, Reason.OWN_OFFSET, Reason.MISSING}
#: The findings that a lost sector gives.
_LOST = {
    Reason.BAD_ENTRY,
    Reason.MISSING,
    Reason.BAD_RECORD,
    Reason.BAD_CHECKSUM,
    Reason.UNREFERENCED,
}
#: Next to each other in a file, these are one finding.
_JOINED = {*_OF_INDEX, Reason.UNINDEXED}


def check(
    root: str | os.PathLike[str],
    *,
    topic: str | None = None,
    store_id: int | None = None,
    vfs: Vfs | None = None,
    is_written: Callable[[], bool] | None = None,
    wait: Callable[[float], None] = time.sleep,
    watch: Watch | None = None,
) -> Iterator[Finding]:
    """Go through a store and yield what is wrong, shard by shard, in the order of the index.

    `is_written` returns whether a writer has the store open, if that can be known: findings at the
    ends of its files are then not reported. `watch` gets the bytes that are read, and all of them,
    every MiB or so: sealed files are read twice.
    NotAStore if there is no store at `root`.
    """
    root, vfs = checked_root(root), vfs or disk_of(root)
    bounds = read_bounds(vfs, root)  # before the files, which a writer writes first
    shards = find_shards(root, vfs, topic=topic, store_id=store_id, with_pending=True)
    if not vfs.entries(root):
        raise NotAStore(root, "there is no store in this directory: it is empty")
    yield from check_state(vfs, root, is_written or (lambda: False))
    yield from check_register(vfs, root)
    yield from check_directories(vfs, root, shards, topic, store_id)
    yield from check_stores(vfs, root, shards)
    unsettled: list[_Seen] = []
    settled = partial(_settled, is_written=is_written, wait=wait)
    read = BytesRead(shards, watch)
    for shard in shards:
        read.begin(shard)
        seen = _Seen(vfs, root, shard, bounds.get(basename(shard.directory)))
        yield from seen.look(read)
        if seen.findings:
            unsettled.append(seen)
        if sum(len(seen.findings) for seen in unsettled) > HELD_FINDINGS_MAX:
            yield from settled(unsettled)
            unsettled = []
    read.finish()
    yield from settled(unsettled)


def _settled(
    unsettled: list[_Seen],
    *,
    is_written: Callable[[], bool] | None,
    wait: Callable[[float], None],
) -> Iterator[Finding]:
    """Check shards again until what is in flight has moved; yield what is still there."""
    for _ in range(_LOOKS if unsettled else 0):
        wait(_PAUSE)
        for seen in unsettled:
            seen.look_again()
    for seen in unsettled:
        # A finding that stays is damage; at the end, only if no writer is at work.
        found = (*seen.findings, *seen.counted())
        yield from (f for f in found if not (f.at_end and is_written and is_written()))


class _Seen:
    """A shard's findings that may be bytes in flight, and the state of its files at the last look.

    A limited number of them is held. More are counted by their reason.
    """

    def __init__(self, vfs: Vfs, root: str, shard: ShardFiles, outside: Bounds | None) -> None:
        self._vfs, self._root, self._shard, self._outside = vfs, root, shard, outside
        self._times = _modified(vfs, shard)
        self.findings: list[Finding] = []
        #: How many are held, by whether they are at the end of a stream.
        self._held = Counter[bool]()
        #: How many more there are, by reason, and whether they are at the end of a stream.
        self._more: Counter[tuple[Reason, bool]] = Counter()
        self._stale = False

    def look(self, read: BytesRead) -> Iterator[Finding]:
        """Look for the first time; yield what is certain: no file moved, and it is at no end."""
        for finding in _look(self._vfs, self._shard, self._outside, read):
            if self._held[False] >= HELD_FINDINGS_MAX and not self._stale:
                yield from self._certain()
            self._hold(finding)
        if self._held[False] and not self._held[True]:
            yield from self._certain()

    def _certain(self) -> Iterator[Finding]:
        """Yield the findings that are at no end, and drop them, if no file has moved."""
        if not self.has_moved():
            certain = [f for f in self.findings if not f.at_end]
            self.findings = [f for f in self.findings if f.at_end]
            self._held[False] = 0
            yield from certain

    def _hold(self, finding: Finding) -> None:
        if self._held[finding.at_end] < HELD_FINDINGS_MAX:
            self._held[finding.at_end] += 1
            self.findings.append(finding)
        else:
            self._more[finding.reason, finding.at_end] += 1

    def has_moved(self) -> bool:
        """True if a file was written, added or removed since the last look."""
        known = self._shard
        again = list_shard(self._vfs, self._root, known.topic, known.store_id, with_pending=True)
        times = _modified(self._vfs, again)
        self._stale |= (again, times) != (self._shard, self._times)
        self._shard, self._times = again, times
        return self._stale

    def look_again(self) -> None:
        """Keep the findings that are still there, and count no more of a reason than before."""
        if not self.findings:
            return
        outside = read_bounds(self._vfs, self._root).get(basename(self._shard.directory))
        if self.has_moved():
            self._outside = outside
            known, before = {f.identity for f in self.findings}, self._more
            self.findings, self._more = [], Counter()
            for finding in _look(self._vfs, self._shard, self._outside, BytesRead()):
                if finding.identity in known:
                    self.findings.append(finding)
                elif before:
                    self._more[finding.reason, finding.at_end] += 1
            self._more &= before
            self._stale = False

    def counted(self) -> Iterator[Finding]:
        """Yield a finding a reason for those that are not held."""
        for (reason, at_end), count in sorted(self._more.items()):
            text = f"{count} more of these in the shard"
            yield Finding(self._shard.directory, 0, reason, text, at_end=at_end)


def _modified(vfs: Vfs, shard: ShardFiles) -> list[int]:
    try:
        return [vfs.modified_ms(file.path) for file in (*shard.index, *shard.data)]
    except FileNotFoundError:
        return []  # it went away since the listing


def _look(
    vfs: Vfs, shard: ShardFiles, outside: Bounds | None, read: BytesRead
) -> Iterator[Finding]:
    """Go through what is wrong with a shard's files as they were listed."""
    for path, size in shard.strays:
        yield Finding(path, 0, Reason.FOREIGN_NAME, f"{size} bytes")
    yield from _check_names(shard.index, INDEX_SUFFIX)
    yield from _check_names(shard.data, DATA_SUFFIX)
    yield from _check_lengths(shard.index)
    known = read_recorded(vfs, shard.directory)
    yield from check_checkpoint(vfs, shard, known)
    yield from check_files(vfs, shard, joined(known.checkpoint, outside))
    for file, (_, text) in misplaced_files(vfs, shard).items():
        yield Finding(file.path, 0, Reason.MISPLACED, text)
    damaged = _DamagedBlocks()
    try:
        for finding in _merged(_findings_of(vfs, shard, known_holes(known.checkpoint), read)):
            damaged.add(finding)
            yield finding
        yield from (f for f in check_digests(vfs, shard, read) if not damaged.explain(f))
    except OSError as error:
        path = error.filename or shard.directory
        yield Finding(str(path), 0, Reason.UNREADABLE, error.strerror or repr(error))


class _DamagedBlocks:
    """The blocks of digests in which an error was found; a byte each."""

    def __init__(self) -> None:
        self._blocks: dict[str, bytearray] = {}

    def add(self, finding: Finding) -> None:
        """Note the block of an error."""
        if finding.severity == "error":
            blocks = self._blocks.setdefault(finding.path, bytearray())
            block = finding.position // DIGEST_BLOCK_BYTES
            blocks.extend(bytes(max(0, block + 1 - len(blocks))))
            blocks[block] = 1

    def explain(self, finding: Finding) -> bool:
        """True if the digest of a block differs because of damage that was found in it."""
        block = finding.position // DIGEST_BLOCK_BYTES
        return finding.reason is Reason.DIGEST_DIFFERS and any(
            self._blocks.get(finding.path, b"")[block : block + 1]
        )


def _check_names(files: tuple[StoredFile, ...], suffix: str) -> Iterator[Finding]:
    for file in files:
        if not (file.final or file.path).endswith(segment_name(file.start - file.begins, suffix)):
            text = f"usual is {segment_name(file.start, suffix)}"
            yield Finding(file.path, 0, Reason.NAME_FORM, text)
    end = files[0].start if files else 0
    for file in files:
        if file.start != end:
            reason = Reason.GAP if file.start > end else Reason.OVERLAP
            text = f"it starts at {file.start}, what is before ends at {end}"
            yield Finding(file.path, 0, reason, text)
        end = max(end, file.end)


def _check_lengths(files: tuple[StoredFile, ...]) -> Iterator[Finding]:
    for file in files:
        rest = file.size % ENTRY_SIZE
        if rest:
            text = f"the last {rest} bytes are a part of an entry of {ENTRY_SIZE}"
            last = file is files[-1]
            yield Finding(file.path, file.size - rest, Reason.PARTIAL_ENTRY, text, at_end=last)


def _findings_of(
    vfs: Vfs, shard: ShardFiles, holes: list[tuple[int, int]], read: BytesRead
) -> Iterator[tuple[Finding, int, int]]:
    """Go through the walk's verdicts: (finding, its rows, its bytes in the file)."""
    index_end = shard.index[-1].end // ENTRY_SIZE * ENTRY_SIZE if shard.index else 0
    covered = shard.data[0].start if shard.data else 0
    for stretch in read.walked(shard, walk(vfs, shard)):
        place = stretch.data_offset if stretch.data_size else covered
        covered = max(covered, stretch.data_offset + stretch.data_size)
        if stretch.verdict is None:
            continue
        reason, message = stretch.verdict, stretch.message
        if reason in _LOST and any(start <= place < end for start, end in holes):
            reason, message = Reason.NEVER_SYNCED, f"{reason}: {message}{NEVER_SYNCED}"
        of_index = stretch.verdict in _OF_INDEX and not stretch.in_record
        offset = stretch.index_offset if of_index else stretch.data_offset
        file = _holder(shard.index if of_index else shard.data, offset)
        at_end = stretch.index_offset >= index_end and not of_index
        found = Finding(file.path, offset - file.start, reason, message, at_end=at_end)
        length = ENTRY_SIZE * len(stretch.entries) if of_index else stretch.data_size
        yield found, len(stretch.entries), length


def _holder(files: tuple[StoredFile, ...], offset: int) -> StoredFile:
    """Return the file that an offset was found in."""
    return next(file for file in reversed(files) if file.start <= offset)


def _merged(findings: Iterable[tuple[Finding, int, int]]) -> Iterator[Finding]:
    """Join findings of the same kind in rows next to each other: one line, with their number."""
    first: Finding | None = None
    rows, end = 0, 0
    for finding, count, length in findings:
        same = first is not None and (first.path, first.reason) == (finding.path, finding.reason)
        if same and finding.reason in _JOINED and finding.position == end:
            rows += count
        else:
            if first is not None:
                yield _counted(first, rows)
            first, rows = finding, count
        end = finding.position + length
    if first is not None:
        yield _counted(first, rows)


def _counted(finding: Finding, rows: int) -> Finding:
    if finding.reason is Reason.UNINDEXED:
        text = f"{rows} intact records without index entries"
    elif rows > 1:
        text = f"{rows} in a row; the first: {finding.message}"
    else:
        return finding
    return replace(finding, message=text)
