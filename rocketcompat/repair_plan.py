"""What has to be done to a store so that every broker opens it without a loss. Reads only.

The log comes first, everything else is computed from the log as it will be (`overlay.py`):

- names that no store has, and files of a wrong length;
- damage with sound records behind it: stand-ins and fillers (`log_mending.py`);
- a torn end, what an earlier recovery cut off and left, and data behind the log's end: zeros;
- queue files that say something else than the log; files behind a queue's end (R2), stale
  units (R7), lost queues and tails (R5);
- an index with any fault, or none: built anew; shards that the log does not confirm, too;
- a checkpoint of a wrong length; a configuration file whose backup is sound;
- the `abort` file, when all the rest is done: the next start need not recover.

A file of the log that is missing in the middle cannot be mended; brokers pass over it.

Next to read: `repair.py`, which does it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rocketcompat.check import LogKeys, check_checkpoint, check_index, check_tube
from rocketcompat.config_files import BACKUP_SUFFIX, config_names, read_config
from rocketcompat.consume_queue import Units, is_unit
from rocketcompat.decode import decode_record
from rocketcompat.directory import Region, StoreDirectory
from rocketcompat.formats import (
    ABORT_FILE,
    BODY_CRC_MASK,
    CHECKPOINT,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_SIZE,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    INDEX_DIRECTORY,
    MESSAGE_PREFIX,
    OWN_DIRECTORY,
    PROGRESS_FILE,
    TUBE_DIRECTORY,
    offset_name,
    parse_offset_name,
)
from rocketcompat.index_geometry import geometry_of
from rocketcompat.log_mending import LostMessage, Mended, Neighbour, mend
from rocketcompat.overlay import FileChange, OverlayVfs
from rocketcompat.queue_view import QueueKey, QueueView, QueueViews
from rocketcompat.store_checkpoint import StoreCheckpoint
from tubestore.errors import InvalidMessage

#: A hole in a queue's numbers that is larger is not the damage of one region.
_HOLE_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do; `row` is what users see. What it does to bytes is in the plan."""

    path: str
    action: str
    position: int
    bytes: int
    message: str

    def row(self) -> dict[str, Any]:
        """Return {"path", "action", "position", "bytes", "message"}."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class RepairPlan:
    """Everything that a repair does, in its order: removals, changes, builds, `last`."""

    actions: list[Action] = field(default_factory=list)
    changes: dict[str, FileChange] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    rebuilds: list[str] = field(default_factory=list)
    #: Files that are removed when all else is done.
    last: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be done."""
        return not (self.changes or self.removed or self.rebuilds or self.last)

    def change(self, action: Action, change: FileChange) -> None:
        """Add a change, over one of the same file."""
        self.actions.append(action)
        old = self.changes.get(change.path)
        if old is not None and not change.fresh:
            zero = min(
                (z for z in (old.zero_from, change.zero_from) if z is not None), default=None
            )
            change = replace(change, patches=(*old.patches, *change.patches), zero_from=zero,
                             fresh=old.fresh)  # fmt: skip
        self.changes[change.path] = change

    def remove(self, path: str, size: int, why: str) -> None:
        """Add a removal."""
        self.actions.append(Action(path, "remove", 0, size, why))
        self.removed.append(path)

    def overlay(self, directory: StoreDirectory, *, marks: bool = False) -> StoreDirectory:
        """Return the directory as it will be.

        Without our `marks`, which know of damage that will be gone by then; what is torn behind
        them is to be seen before.
        """
        hidden = set() if marks else {directory.path(OWN_DIRECTORY, PROGRESS_FILE)}
        vfs: Any = OverlayVfs(directory.vfs, self.changes, hidden.union(self.removed))
        options = {**directory.inferred, **directory.options}
        return StoreDirectory(directory.root, options, vfs)


def plan_repair(directory: StoreDirectory, *, keep_bodies: bool = False) -> RepairPlan:
    """Return what would mend the store; `keep_bodies` accepts bodies that fail their checksum.

    NotAStore if it has queues of another kind, or only a part of its log is here.
    """
    directory.check_changeable()
    plan = RepairPlan()
    for path in directory.log.directories:
        _plan_names(directory, plan, path, directory.log.file_size)
    _plan_log(plan.overlay(directory, marks=True), plan, keep_bodies=keep_bodies)
    mended = plan.overlay(directory)
    views = QueueViews(mended)
    for view in views:
        _plan_queue(mended, plan, view)
    log = LogKeys(mended)
    _plan_index(mended, plan, log)
    if any(row["severity"] == "error" for row in check_tube(mended)):
        plan.rebuilds.append(TUBE_DIRECTORY)
        path, why = directory.path(TUBE_DIRECTORY), "the shards are not what the log says"
        plan.actions.append(Action(path, "rebuild", 0, 0, why))
    _plan_checkpoint(directory, plan, log)
    _plan_config(directory, plan)
    abort = directory.path(ABORT_FILE)
    if directory.vfs.exists(abort):
        plan.last.append(abort)
        message = "the next start need not recover, when all of this is done"
        plan.actions.append(Action(abort, "remove", 0, 0, message))
    return plan


def _plan_names(directory: StoreDirectory, plan: RepairPlan, path: str, file_size: int) -> None:
    """What may not be in a directory of files of one size (spec §5.5)."""
    rows = directory.vfs.entries(path)
    files = [name for name, is_directory, _ in rows
             if not is_directory and parse_offset_name(name) is not None]  # fmt: skip
    for name, is_directory, size in rows:
        full = os.path.join(path, name)
        if is_directory or parse_offset_name(name) is None:
            plan.remove(full, size, "no file of a store: a real broker refuses to start")
        elif size == 0 and name == files[-1]:
            plan.remove(full, 0, "empty: a crash while it was created")
        elif size != file_size:
            why = f"{size} bytes, not {file_size}: a real broker refuses to start"
            plan.change(Action(full, "resize", min(size, file_size), abs(file_size - size), why),
                        FileChange(full, file_size))  # fmt: skip


def _plan_log(directory: StoreDirectory, plan: RepairPlan, *, keep_bodies: bool) -> None:
    """Make the log one chain that ends where its sound records end."""
    before = Neighbour()
    regions: list[tuple[Region, Neighbour]] = []
    log_end = directory.log.min_offset
    for piece in directory.scan_log():
        if isinstance(piece, Region):
            regions.append((piece, before))
            continue
        row = len(piece) - 1
        host = piece.hosts("store_host")[row].as_py()
        stored = int(piece.column("store_timestamp")[row])
        narrow = len(host) == len(before.store_host)
        before = Neighbour(stored, host if narrow else before.store_host)
        log_end = piece.base + int(piece.starts[row] + piece.column("total_size")[row])
    damaged = [(r, n) for r, n in regions if r.state == "damaged"]
    views = QueueViews(directory) if damaged else None
    taken: set[tuple[str, int, int]] = set()
    for region, neighbour in regions:
        if region.state in ("torn", "stale"):
            _zero_from(directory, plan, region.start, region.reason)
        elif region.state == "missing":
            what = f"offsets {region.start} to {region.end}: lost, brokers pass over it"
            plan.actions.append(Action(region.path, "leave", 0, region.end - region.start, what))
        elif views is not None:
            lost = _lost_messages(directory, views, region, taken)
            _plan_region(directory, plan, region, lost, neighbour, keep_bodies=keep_bodies)
            log_end = max(log_end, region.end)
    last = directory.log.find(max(log_end - 1, 0))
    for file in directory.log.files:
        behind = last is not None and file.file_from_offset > last.file_from_offset
        if behind and file.next_data(0) is not None and any(file.read(0, file.file_size)):
            plan.remove(file.path, file.file_size, "behind the log's end: no sound records")


def _zero_from(directory: StoreDirectory, plan: RepairPlan, offset: int, why: str) -> None:
    file = directory.log.find(offset)
    assert file is not None
    position = offset - file.file_from_offset
    size = file.file_size - position
    plan.change(Action(file.path, "zero", position, size, f"the log ends here: {why}"),
                FileChange(file.path, file.file_size, zero_from=position))  # fmt: skip


def _lost_messages(
    directory: StoreDirectory, views: QueueViews, region: Region, taken: set[tuple[str, int, int]]
) -> list[LostMessage]:
    """Return the messages that stood in a region, as far as anything tells."""
    found: dict[tuple[str, int, int], LostMessage] = {}
    raw = directory.log.read(region.start, region.end - region.start)
    own = decode_record(raw, physical_offset=region.start)
    if own["properties"] is not None and own["total_size"] == len(raw):
        key = (own["topic"], own["queue_id"], own["queue_offset"])
        names = ("born_timestamp", "store_timestamp", "flag", "reconsume_times", "properties")
        found[key] = LostMessage(*key, region.start, **{name: own[name] for name in names})
    for view in views:
        for place in np.flatnonzero(view.states == "damaged").tolist():
            offset = int(view.units[place]["physical_offset"])
            key = (view.topic, view.queue_id, view.min_offset + place)
            if region.start <= offset < region.end:
                found.setdefault(key, LostMessage(*key, offset))
        for number in _missing_numbers(views, (view.topic, view.queue_id), region):
            key = (view.topic, view.queue_id, number)
            found.setdefault(key, LostMessage(*key))
    fresh = {key: message for key, message in found.items() if key not in taken}
    taken |= set(fresh)
    return [fresh[key] for key in sorted(fresh)]


def _missing_numbers(views: QueueViews, key: QueueKey, region: Region) -> Iterator[int]:
    """Yield the queue offsets that lie between the records before and behind a region."""
    offsets, units = views.computed(key)
    place = int(np.searchsorted(units["physical_offset"].astype(np.int64), region.start))
    if 0 < place < len(offsets):
        low, high = int(offsets[place - 1]) + 1, int(offsets[place])
        if high - low <= _HOLE_MAX:
            yield from range(low, high)


def _plan_region(
    directory: StoreDirectory, plan: RepairPlan, region: Region, lost: list[LostMessage],
    before: Neighbour, *, keep_bodies: bool,
) -> None:  # fmt: skip
    """Fill a region, file by file: it may reach over a border."""
    start = region.start
    while start < region.end:
        file = directory.log.find(start)
        file_end = start - start % directory.log.file_size + directory.log.file_size
        end = min(region.end, file_end)
        if file is not None:
            here = [
                m for m in lost if m.physical_offset is None or start <= m.physical_offset < end
            ]
            kept = _accepted(directory, start, end) if keep_bodies else None
            mended = kept or mend(start, end, file_end, here, before)
            _add_mended(plan, file, start, end, mended, region.reason)
            lost = list(mended.without_room) if mended else lost
        start = end


def _accepted(directory: StoreDirectory, start: int, end: int) -> Mended | None:
    """Return the record of a part with the checksum that its body has, if nothing else is wrong."""
    raw = directory.log.read(start, end - start)
    row = decode_record(raw, physical_offset=start)
    if row["properties"] is None or row["total_size"] != len(raw) or not row["body"]:
        return None
    crc = (zlib.crc32(row["body"]) & BODY_CRC_MASK).to_bytes(4, "big")
    at = MESSAGE_PREFIX.position("body_crc")
    fixed = raw[:at] + crc + raw[at + 4 :]
    if decode_record(fixed, physical_offset=start)["state"] != "ok":
        return None
    return Mended(((start, fixed),), (), ())


def _add_mended(
    plan: RepairPlan, file: Any, start: int, end: int, mended: Mended | None, reason: str
) -> None:
    position = start - file.file_from_offset
    if mended is None:
        what = f"{reason}; too short for a record to stand in"
        plan.actions.append(Action(file.path, "leave", position, end - start, what))
        return
    patches = tuple((at - file.file_from_offset, raw) for at, raw in mended.patches)
    names = [f"{m.topic}/{m.queue_id}@{m.queue_offset}" for m in mended.stand_ins]
    stand = f"stand-ins for {', '.join(names[:5])}" if names else "fillers"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    plan.change(Action(file.path, "write", position, end - start, f"{reason}: {stand}{more}"),
                FileChange(file.path, file.file_size, patches))  # fmt: skip


def _plan_queue(directory: StoreDirectory, plan: RepairPlan, view: QueueView) -> None:
    """Make a queue's files say what the log says, and no more."""
    path = directory.queue_path(view.topic, view.queue_id)
    size = directory.config.consume_queue_file_size
    rows = directory.vfs.entries(path)
    files: dict[int, tuple[str, int]] = {}
    for name, is_directory, length in rows:
        start = parse_offset_name(name)
        if is_directory or start is None:
            full = os.path.join(path, name)
            plan.remove(full, length, "no file of a queue: a real broker refuses to start")
        else:
            files[start] = (os.path.join(path, name), length)
    per_file = view.units_per_file
    first, last = view.min_offset // per_file, (view.max_offset - 1) // per_file
    needed = set(range(first, last + 1)) if view.max_offset > view.min_offset else set()
    for number in sorted({start // size for start in files} | needed):
        start = number * size
        full, length = files.get(start, (os.path.join(path, offset_name(start)), -1))
        if number * per_file >= view.max_offset:
            plan.remove(full, length, "a queue file behind the queue's end")
        elif length != size or _differs(view, number):
            _plan_queue_file(directory, plan, view, full, number, length)


def _differs(view: QueueView, number: int) -> bool:
    """Whether a file of a queue may hold something else than it should."""
    low, high = number * view.units_per_file, (number + 1) * view.units_per_file
    states = view.states[max(low - view.min_offset, 0) : max(high - view.min_offset, 0)]
    beyond = len(view.states) > view.max_offset - view.min_offset
    return bool((states != "ok").any()) or (beyond and high > view.max_offset)


def _plan_queue_file(
    directory: StoreDirectory, plan: RepairPlan, view: QueueView, path: str, number: int,
    length: int,
) -> None:  # fmt: skip
    per_file = view.units_per_file
    size, low = per_file * CQ_UNIT.size, number * per_file
    raw = directory.vfs.read_file(path) if length >= 0 else b""
    there = np.frombuffer(raw[:size].ljust(size, b"\0"), CQ_UNIT.dtype)
    wanted = there.copy()
    floor, end = max(view.min_offset - low, 0), min(view.max_offset - low, per_file)
    _fill(wanted[: min(floor, per_file)])
    shown = view.units[low + floor - view.min_offset : low + end - view.min_offset]
    wanted[floor:end] = shown
    wanted[max(end, 0) :] = np.zeros(1, CQ_UNIT.dtype)
    content = wanted.tobytes()
    if length == size and content == raw:
        return
    wrong = np.flatnonzero(there != wanted)
    position = int(wrong[0]) * CQ_UNIT.size if len(wrong) else 0
    action = "write" if length >= 0 else "create"
    what = f"units {low + int(wrong[0])} to {low + int(wrong[-1])}" if len(wrong) else "the length"
    message = f"{view.topic}/{view.queue_id}: {what} as the log says"
    plan.change(Action(path, action, position, len(wrong) * CQ_UNIT.size, message),
                FileChange(path, size, ((0, content),), fresh=True))  # fmt: skip


def _fill(units: Units) -> None:
    """Keep what are units; the rest before a queue's first stands for no message."""
    fill = np.zeros(1, CQ_UNIT.dtype)
    fill["size"] = CQ_PRE_FILL_SIZE
    units[~is_unit(units)] = fill


def _plan_index(directory: StoreDirectory, plan: RepairPlan, log: LogKeys) -> None:
    """Any fault of the index is mended by another index."""
    path = directory.path(INDEX_DIRECTORY)
    findings = list(check_index(directory, log))
    unknown = [f["message"] for f in findings if f["reason"] == "index_geometry"]
    if unknown:
        try:
            geometry_of(directory, believe=True)
        except InvalidMessage:
            plan.actions.append(Action(path, "leave", 0, 0, unknown[0]))
            return
    if findings:
        reasons = sorted({f["reason"] for f in findings})
        plan.rebuilds.append(INDEX_DIRECTORY)
        message = f"from the log: {', '.join(reasons)}"
        plan.actions.append(Action(path, "rebuild", 0, 0, message))


def _plan_checkpoint(directory: StoreDirectory, plan: RepairPlan, log: LogKeys) -> None:
    """A checkpoint of a wrong length, or that speaks of messages that are not there."""
    findings = list(check_checkpoint(directory, log))
    if not findings:
        return
    path, why = directory.path(CHECKPOINT_FILE), findings[0]["message"]
    checkpoint = StoreCheckpoint(directory.vfs, path)
    # Zeros are always safe: every recovery begins at the log's first file then.
    values = dict.fromkeys((f.name for f in CHECKPOINT.fields), 0)
    if findings[0]["reason"] == "checkpoint_ahead":
        values |= {
            name: min(getattr(checkpoint, name), log.last_timestamp)
            for name in values if name.endswith("_timestamp")
        }  # fmt: skip
    action = Action(path, "write", 0, CHECKPOINT_FILE_SIZE, why)
    content = ((0, CHECKPOINT.pack(**values)),)
    plan.change(action, FileChange(path, CHECKPOINT_FILE_SIZE, content, fresh=True))


def _plan_config(directory: StoreDirectory, plan: RepairPlan) -> None:
    """A configuration file that cannot be read is taken from its backup."""
    for name in config_names(directory.vfs, directory.root):
        found = read_config(directory.vfs, directory.root, name)
        if found.problem and found.from_backup:
            raw = directory.vfs.read_file(found.path + BACKUP_SUFFIX)
            action = Action(found.path, "write", 0, len(raw), f"{found.problem}: from its backup")
            plan.change(action, FileChange(found.path, len(raw), ((0, raw),), fresh=True))
        elif found.problem:
            plan.actions.append(Action(found.path, "leave", 0, 0, f"{found.problem}; no backup"))
