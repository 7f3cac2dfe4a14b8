"""The plan of a repair: after it every broker opens the store without a loss. Reads only.

The log comes first, everything else is computed from the log as it will be (`overlay.py`):

- names that no store has, and files of a wrong length;
- files of the log that hold the records of another place: put back (`places.py`);
- damage with sound records behind it, or below a mark or at a unit: stand-ins and fillers
  (`log.py`);
- a torn end, what an earlier recovery cut off and left, and data behind the log's end: zeros;
- ordinary queues of topics of batches (5.x refuses to start), and queues with a lost extension;
- queue files that differ from the log; files behind a queue's end (R2), stale
  units (R7), lost queues and tails (R5);
- an index with any fault, or none: built anew; shards that the log does not confirm, too;
- a checkpoint of a wrong length; a configuration file with a sound backup;
- the `abort` file, when all the rest is done: the next start need not recover.

A file of the log that is missing in the middle cannot be mended; brokers pass over it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from rocketcompat.check.index import LogKeys, check_index
from rocketcompat.check.shards import ShardComparison, check_tube
from rocketcompat.check.whole import check_checkpoint, handing_on
from rocketcompat.commitlog.walk import Gap
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.config_files import BACKUP_SUFFIX, config_names, read_config
from rocketcompat.formats import (
    ABORT_FILE,
    BODY_CRC_MASK,
    CHECKPOINT,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_SIZE,
    INDEX_DIRECTORY,
    MESSAGE_PREFIX,
    TUBE_DIRECTORY,
    parse_offset_name,
)
from rocketcompat.inspect.decode import decode_record
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.inspect.queues import QueueViews
from rocketcompat.queues.units import Units
from rocketcompat.repair.actions import RepairPlan
from rocketcompat.repair.log import LostMessage, Mended, Neighbour, mend
from rocketcompat.repair.overlay import FileChange
from rocketcompat.repair.places import plan_places
from rocketcompat.repair.queues import plan_queues
from tubestore.core.kernels import Int64s
from tubestore.core.quarantine import Action
from tubestore.core.trees import list_by_start
from tubestore.errors import InvalidMessage

#: A hole in a queue's numbers that is larger is not the damage of one region.
_HOLE_MAX = 100_000


def plan_repair(directory: StoreDirectory, *, keep_bodies: bool = False) -> RepairPlan:
    """Return a plan that mends the store; `keep_bodies` accepts bodies that fail their checksum.

    NotAStore if it has queues of another kind, or only a part of its log is here.
    """
    directory.check_changeable()
    plan = RepairPlan()
    for path in directory.log.directories:
        _plan_names(directory, plan, path, directory.log.file_size)
    places = plan_places(directory, {*plan.changes, *plan.removed})
    plan.moves, plan.actions = places.moves, [*plan.actions, *places.actions]
    for path in places.left:
        plan.remove(path, 0, "left by a repair that was interrupted")
    put_back = plan.overlay(directory, marks=True)
    _plan_log(put_back, plan, keep_bodies=keep_bodies, unclear=places.unclear)
    mended = plan.overlay(directory)
    plan_queues(mended, plan)
    shards = ShardComparison(mended)
    log = LogKeys(mended)
    for _ in log.scan(handing_on(mended.scan_log(), shards.take)):
        pass  # faults of the log are in the plan
    _plan_index(mended, plan, log)
    # A cache is mended with them: the records, which it is about, stay as they are.
    found = check_tube(mended, shards, log.end)
    if any(row["severity"] == "error" or row["reason"] == "stale_cache" for row in found):
        plan.rebuilds.append(TUBE_DIRECTORY)
        path, why = directory.path(TUBE_DIRECTORY), "the shards differ from the log"
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
    """Plan for names and files that may not be in a directory of files of one size."""
    found = list_by_start(directory.vfs, path, parse_offset_name)
    for other, _, size in found.others:
        plan.remove(other, size, "no file of a store: a real broker refuses to start")
    for _, full, size in found.files:
        if size == 0 and full == found.files[-1][1]:
            plan.remove(full, 0, "empty: a crash while it was created")
        elif size != file_size:
            why = f"{size} bytes, not {file_size}: a real broker refuses to start"
            plan.change(Action(full, "resize", min(size, file_size), abs(file_size - size), why),
                        FileChange(full, file_size))  # fmt: skip


def _plan_log(
    directory: StoreDirectory, plan: RepairPlan, *, keep_bodies: bool, unclear: set[int]
) -> None:
    """Make the log one chain that ends where its sound records end; not in `unclear` files."""
    before = Neighbour()
    regions: list[tuple[Gap, Neighbour]] = []
    log_end = directory.log.min_offset
    for piece in directory.scan_log():
        if isinstance(piece, Gap):
            regions.append((piece, before))
            continue
        row = len(piece) - 1
        host = piece.hosts("store_host")[row].as_py()
        stored = int(piece.column("store_timestamp")[row])
        narrow = len(host) == len(before.store_host)
        before = Neighbour(stored, host if narrow else before.store_host)
        log_end = piece.base + int(piece.starts[row] + piece.column("total_size")[row])
    damaged = [region for region, _ in regions if region.state == "damaged"]
    in_queues = _lost_in_queues(directory, damaged) if damaged else {}
    taken: set[tuple[str, int, int]] = set()
    for region, neighbour in regions:
        if region.start in unclear:
            log_end = max(log_end, region.end)
        elif region.state in ("torn", "stale"):
            _zero_from(directory, plan, region.start, region.reason)
        elif region.state == "missing":
            what = f"offsets {region.start} to {region.end}: lost, brokers pass over it"
            plan.actions.append(Action(region.path, "leave", 0, region.end - region.start, what))
        elif region.state == "damaged":
            lost = _lost_messages(directory, in_queues[region.start], region, taken)
            _plan_region(directory, plan, region, lost, neighbour, keep_bodies=keep_bodies)
            log_end = max(log_end, region.end)
    last = directory.log.find(max(log_end - 1, 0))
    for file in directory.log.files:
        behind = last is not None and file.file_from_offset > last.file_from_offset
        if not behind or file.file_from_offset in unclear:
            continue
        if file.next_data(0) is not None and any(file.read(0, file.file_size)):
            misplaced = directory.misplaced.over(file.file_from_offset)
            why = f"{misplaced.reason}, which are there" if misplaced else "no sound records"
            plan.remove(file.path, file.file_size, f"behind the log's end: {why}")


def _zero_from(directory: StoreDirectory, plan: RepairPlan, offset: int, why: str) -> None:
    file = directory.log.find(offset)
    assert file is not None
    position = offset - file.file_from_offset
    size = file.file_size - position
    plan.change(Action(file.path, "zero", position, size, f"the log ends here: {why}"),
                FileChange(file.path, file.file_size, zero_from=position))  # fmt: skip


def _lost_in_queues(directory: StoreDirectory, regions: list[Gap]) -> dict[int, list[LostMessage]]:
    """Return the messages of each region that the queues name, by the region's start."""
    found: dict[int, list[LostMessage]] = {region.start: [] for region in regions}
    views = QueueViews(directory)
    for view in views.ordinary():
        key = view.topic, view.queue_id
        places = np.flatnonzero(view.states == "damaged")
        offsets = view.units["physical_offset"][places].astype(np.int64)
        computed = views.computed(key)
        for region in regions:
            lost = found[region.start]
            for row in np.flatnonzero((offsets >= region.start) & (offsets < region.end)).tolist():
                number = view.min_offset + int(places[row])
                lost.append(LostMessage(*key, number, int(offsets[row])))
            lost += [LostMessage(*key, number) for number in _missing_numbers(*computed, region)]
    for of_batches in views.of_batches():
        for place in np.flatnonzero(of_batches.states == "damaged").tolist():
            unit = of_batches.units[place]
            offset, base = int(unit["physical_offset"]), int(unit["base_offset"])
            for region in regions:
                if region.start <= offset < region.end:
                    lost = found[region.start]
                    lost.append(LostMessage(of_batches.topic, of_batches.queue_id, base, offset))
    return found


def _lost_messages(
    directory: StoreDirectory, in_queues: list[LostMessage], region: Gap,
    taken: set[tuple[str, int, int]],
) -> list[LostMessage]:  # fmt: skip
    """Return the messages of a region, as far as it or the queues name them."""
    found: dict[tuple[str, int, int], LostMessage] = {}
    raw = directory.log.read(region.start, region.end - region.start)
    own = decode_record(raw, physical_offset=region.start)
    if own["properties"] is not None and own["total_size"] == len(raw):
        key = (own["topic"], own["queue_id"], own["queue_offset"])
        names = ("born_timestamp", "store_timestamp", "flag", "reconsume_times", "properties")
        found[key] = LostMessage(*key, region.start, **{name: own[name] for name in names})
    for message in in_queues:
        found.setdefault((message.topic, message.queue_id, message.queue_offset), message)
    fresh = {key: message for key, message in found.items() if key not in taken}
    taken |= set(fresh)
    return [fresh[key] for key in sorted(fresh)]


def _missing_numbers(offsets: Int64s, units: Units, region: Gap) -> Iterator[int]:
    """Yield the queue offsets that lie between the records before and behind a region."""
    place = int(np.searchsorted(units["physical_offset"].astype(np.int64), region.start))
    if 0 < place < len(offsets):
        low, high = int(offsets[place - 1]) + 1, int(offsets[place])
        if high - low <= _HOLE_MAX:
            yield from range(low, high)


def _plan_region(
    directory: StoreDirectory, plan: RepairPlan, region: Gap, lost: list[LostMessage],
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
        what = f"{reason}; too short for a record"
        plan.actions.append(Action(file.path, "leave", position, end - start, what))
        return
    patches = tuple((at - file.file_from_offset, raw) for at, raw in mended.patches)
    names = [f"{m.topic}/{m.queue_id}@{m.queue_offset}" for m in mended.stand_ins]
    content = f"stand-ins for {', '.join(names[:5])}" if names else "fillers"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    plan.change(Action(file.path, "write", position, end - start, f"{reason}: {content}{more}"),
                FileChange(file.path, file.file_size, patches))  # fmt: skip


def _plan_index(directory: StoreDirectory, plan: RepairPlan, log: LogKeys) -> None:
    """Plan a new index if the present one has any fault."""
    path = directory.path(INDEX_DIRECTORY)
    findings = list(check_index(directory, log))
    unknown = [f["message"] for f in findings if f["reason"] == "index_geometry"]
    if unknown:
        try:
            geometry_of(directory, trust_options=True)
        except InvalidMessage:
            plan.actions.append(Action(path, "leave", 0, 0, unknown[0]))
            return
    if findings:
        reasons = sorted({f["reason"] for f in findings})
        plan.rebuilds.append(INDEX_DIRECTORY)
        message = f"from the log: {', '.join(reasons)}"
        plan.actions.append(Action(path, "rebuild", 0, 0, message))


def _plan_checkpoint(directory: StoreDirectory, plan: RepairPlan, log: LogKeys) -> None:
    """Plan a new checkpoint for one of a wrong length, or ahead of the log's messages."""
    findings = list(check_checkpoint(directory, log.end, log.last_timestamp))
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
