"""Queues, index and shards built anew from the log, whatever state the old ones are in.

The new structure is in `<root>/.tubestore/rebuild/` until it is complete and on stable storage.
Then the old structure goes into quarantine and the new one takes its name. So a crash at any moment
leaves the old one, the new one, or (between the two renames) none, which every broker builds again.
An interrupted run is taken up again.

The structures are the store's own followers (`follower.py`), fed as its dispatcher feeds them.
Their files are those of dispatch, byte for byte, except for the names of index files, which are
times. A queue without any message in the log keeps its last file: without it its offsets would
begin at 0 again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rocketcompat.commitlog.batch import batch_of_records
from rocketcompat.commitlog.walk import ENDS, Gap, Gaps
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.files.progress import Mark, Progress, ProgressFile, Trust
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    OWN_DIRECTORY,
    TUBE_DIRECTORY,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.inspect.log_files import LogFiles
from rocketcompat.messages import DispatchBatch
from rocketcompat.shards.follower import TubeLayout
from rocketcompat.store import structures as table
from tubestore.clock import Clock
from tubestore.core.old_paths import renamed_keyword
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import copy_file, make_directory, remove_tree, sync_tree, tree_size
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage

#: The directory of structures in the making, below `.tubestore`.
WORK_DIRECTORY = "rebuild"
#: Bytes of the log between two marks from which an interrupted run is taken up again.
MARK_BYTES = 4 << 30
Row = dict[str, Any]
#: Called with (bytes of the log done, bytes in all).
Watch = Callable[[int, int], None]


@dataclass(slots=True)
class Built:
    """The result of a run: its directory, and up to where of the log it was built."""

    root: str
    log_end: int = 0
    records: int = 0
    regions: list[Gap] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)

    def remove(self, vfs: Vfs) -> None:
        """Remove what is left of the work directory."""
        remove_tree(vfs, self.root)


@renamed_keyword("told", "watch")
def rebuild(
    directory: StoreDirectory,
    structures: Iterable[str],
    *,
    clock: Clock,
    quarantine: Quarantine,
    watch: Watch = lambda _done, _all: None,
) -> Iterator[Row]:
    """Build structures anew and put them in the old ones' places; yields a row each.

    The caller holds the store's lock. {"path", "action", "position", "bytes", "message"}.
    """
    wanted = structures_to_build(directory, structures)
    directory.check_changeable()
    built = build(directory, wanted, clock=clock, watch=watch)
    names = [follower.name for follower in built.followers]
    yield from install(directory, built, wanted, names, quarantine)
    built.remove(directory.vfs)


def structures_to_build(
    directory: StoreDirectory, structures: Iterable[str] | None, known: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Return which of the `known` structures shall be built, in their order; None asks for all.

    InvalidMessage for one that is not known, and for queues of batches without a topic of such.
    """
    every = [one.directory for one in table.structures()]
    known = tuple(every if known is None else known)
    has_batches = bool(directory.config.batch_topics)
    if structures is None:
        return tuple(n for n in known if n != BATCH_CONSUME_QUEUE_DIRECTORY or has_batches)
    wanted = set(structures)
    if unknown := wanted - set(known):
        raise InvalidMessage(f"{', '.join(sorted(unknown))}: {', '.join(known)} can be built")
    if BATCH_CONSUME_QUEUE_DIRECTORY in wanted and not has_batches:
        raise InvalidMessage("no topic is one of batches; name them with the option batchTopics")
    return tuple(name for name in known if name in wanted)


def install(
    directory: StoreDirectory,
    built: Built,
    structures: Iterable[str],
    followers: Iterable[str],
    quarantine: Quarantine,
) -> Iterator[Row]:
    """Put new structures in the old ones' places, and write their marks; a row each.

    `followers` are the names in the marks.
    """
    marks = ProgressFile(directory.vfs, directory.root)
    known = marks.read()
    marks.forget()  # before anything that they cover is moved
    for name in structures:
        yield put_in_place(directory, built, name, quarantine)
    write_marks(directory, built, followers, marks, known[0] if known else None)
    yield from _left_out(directory, built)


def _left_out(directory: StoreDirectory, built: Built) -> Iterator[Row]:
    """Yield a row for each topic that the shards which were built cannot have."""
    for follower in built.followers:
        if isinstance(follower, TubeLayout):
            for kind in (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY):
                follower.report_topics(topic for topic, _ in directory.queue_names(kind))
            for problem in follower.problems:
                path = directory.path(TUBE_DIRECTORY)
                yield {"path": path, "action": "leave", "position": 0, "bytes": 0,
                       "message": str(problem)}  # fmt: skip


def build(
    directory: StoreDirectory, structures: Iterable[str], *, clock: Clock, watch: Watch,
    work: str | None = None,
) -> Built:  # fmt: skip
    """Build structures in the work directory, on stable storage when it returns."""
    vfs = directory.vfs
    built = Built(work or directory.path(OWN_DIRECTORY, WORK_DIRECTORY))
    make_directory(vfs, built.root)
    built.followers = [_follower(directory, built.root, name, clock) for name in structures]
    marks = ProgressFile(vfs, built.root)
    start = _taken_up(directory, built.followers, marks)
    marked = start
    try:
        for batch in _batches(directory, start, built):
            for follower in built.followers:
                follower.put(batch)
            watch(batch.end - directory.log.min_offset, directory.log.size)
            if batch.end - marked >= MARK_BYTES:
                marked = batch.end
                _mark(built.followers, marks, marked, directory.log.min_offset)
        _mark(built.followers, marks, built.log_end, directory.log.min_offset)
    finally:
        for follower in built.followers:
            follower.close()
    return built


def put_in_place(directory: StoreDirectory, built: Built, name: str, quarantine: Quarantine) -> Row:
    """Move the old structure into quarantine and the new one to its place, durably."""
    vfs, path = directory.vfs, directory.path(name)
    new = os.path.join(built.root, name)
    if not vfs.exists(new):
        vfs.make_directories(new)  # nothing in the log needs one
    structure = _structure_of(name)
    if structure.has_queues:
        _carry_over(directory, new, structure)
    sync_tree(vfs, new)
    if vfs.exists(path):
        quarantine.move(path)
    if name == CONSUME_QUEUE_DIRECTORY:
        # While there are no queues: units must never lead into the extension of other units.
        _put_extension(directory, built, quarantine)
    vfs.rename(new, path)
    vfs.sync_directory(directory.root)
    files, size = tree_size(vfs, path)
    message = f"{files} files from {built.records} records"
    return {"path": path, "action": "rebuild", "position": 0, "bytes": size, "message": message}


def _put_extension(directory: StoreDirectory, built: Built, quarantine: Quarantine) -> None:
    """Move the extension of new queues to its place, durably; the old one goes in any case."""
    vfs, path = directory.vfs, directory.path(CONSUME_QUEUE_EXT_DIRECTORY)
    new = os.path.join(built.root, CONSUME_QUEUE_EXT_DIRECTORY)
    if vfs.exists(path):
        quarantine.move(path)
    if vfs.exists(new):
        sync_tree(vfs, new)
        vfs.rename(new, path)
    vfs.sync_directory(directory.root)


def write_marks(
    directory: StoreDirectory,
    built: Built,
    followers: Iterable[str],
    marks: ProgressFile,
    known: Progress | None,
) -> None:
    """Write the marks of what was built, so that the next opening does not build it again."""
    log = known.log if known else Mark(built.log_end, built.log_end)
    if known is None:
        for file in directory.log.files:
            file.sync_always()
    mark = Mark(built.log_end, built.log_end)
    table = known.followers if known else {}
    table |= dict.fromkeys(followers, mark)
    damages = [(r.start, r.end, r.reason) for r in built.regions if r.state not in ENDS]
    progress = Progress(
        log, table, log_minimum=directory.log.min_offset, damages=damages,
        next_offsets=known.next_offsets if known else {},
    )  # fmt: skip
    marks.write(progress, sync=True)


def _structure_of(directory: str) -> table.Structure[Any]:
    return next(one for one in table.structures() if one.directory == directory)


def _follower(directory: StoreDirectory, root: str, name: str, clock: Clock) -> Follower:
    """Make a structure as the directory has it: with extensions, of the same geometry."""
    config = directory.config
    if extension_size(directory) is not None:
        config = config.changed(enable_consume_queue_ext=True)
    if name == INDEX_DIRECTORY:
        found = geometry_of(directory, trust_options=True)
        config = config.changed(max_hash_slot_num=found.slots, max_index_num=found.items)
    place = table.Place(root, directory.vfs, clock, config, writable=True)
    follower: Follower = _structure_of(name).make(place)
    return follower


@dataclass(frozen=True)
class _DirectoryLog:
    """The log of a directory up to where the structures were built, for their recovery."""

    queue: LogFiles
    max_offset: int

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    @property
    def gaps(self) -> Gaps:
        return self.queue.gaps

    @property
    def record_crc(self) -> bool:
        return self.queue.record_crc

    def read_at(self, physical_offset: int, size: int) -> bytes:
        size = min(size, self.max_offset - physical_offset)
        return self.queue.read(physical_offset, size) if size > 0 else b""


def extension_size(directory: StoreDirectory) -> int | None:
    """Return the bytes of a file of the queues' extension; None if they get none."""
    config = directory.config
    extended = directory.vfs.exists(directory.path(CONSUME_QUEUE_EXT_DIRECTORY))
    extended |= config.enable_consume_queue_ext
    return config.mapped_file_size_consume_queue_ext if extended else None


def _taken_up(directory: StoreDirectory, followers: list[Follower], marks: ProgressFile) -> int:
    """Bring what an earlier run left to its mark; returns from where of the log to go on."""
    known = marks.read()
    names = {follower.name for follower in followers}
    start = directory.log.min_offset
    if known is not None and names <= set(known[0].followers):
        progress = known[0]
        if progress.log_minimum == start and progress.log.synced <= directory.log.max_offset:
            start = min(progress.followers[name].synced for name in names)
    log, trust = _DirectoryLog(directory.log, start), Trust(start)
    for follower in followers:
        follower.attach(directory.log.min_offset, None)
    return min(follower.recover(log, trust, None) for follower in followers)


def _mark(followers: list[Follower], marks: ProgressFile, end: int, log_minimum: int) -> None:
    for follower in followers:
        follower.flush(sync=True)
    mark = Mark(end, end)
    table = {follower.name: mark for follower in followers}
    marks.write(Progress(mark, table, log_minimum=log_minimum), sync=True)


def _batches(directory: StoreDirectory, start: int, built: Built) -> Iterator[DispatchBatch]:
    """Yield the log as the dispatcher would hand it over."""
    delays = directory.config.delay_levels_ms
    damaged: tuple[int, int] | None = None
    built.log_end = position = start
    for piece in directory.scan_log(start, chained=True):
        if isinstance(piece, Gap):
            built.regions.append(piece)
            if piece.state not in ENDS:
                damaged = piece.start, piece.end - piece.start
                built.log_end = piece.end
            continue
        end = piece.records_end
        yield batch_of_records(piece, position, end, delays, damaged)
        built.records += len(piece)
        built.log_end = position = end


def _carry_over(directory: StoreDirectory, new: str, structure: table.Structure[Any]) -> None:
    """Copy the last file of queues without a record in the log: it has their next offset."""
    vfs, kind = directory.vfs, structure.directory
    there = {
        (topic, name)
        for topic, is_directory, _ in vfs.entries(new)
        if is_directory
        for name, _, _ in vfs.entries(os.path.join(new, topic))
    }
    config, batches = directory.config, kind == BATCH_CONSUME_QUEUE_DIRECTORY
    assert structure.file_size_option is not None
    size = getattr(config, structure.file_size_option)
    for topic, queue_id in directory.queue_names(kind):
        misplaced = not batches and topic in config.batch_topics
        if (topic, str(queue_id)) in there or misplaced:
            continue
        old = directory.queue_path(topic, queue_id, kind)
        names = [n for n, d, length in vfs.entries(old) if not d and length == size]
        if names:
            target = os.path.join(new, topic, str(queue_id))
            vfs.make_directories(target)
            copy = copy_file(vfs, os.path.join(old, names[-1]), os.path.join(target, names[-1]))
            copy.sync()
            copy.close()
