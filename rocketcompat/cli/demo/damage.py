"""The demo's third part: a copy of a store is damaged, checked, mended and compared."""

from __future__ import annotations

from pathlib import Path

from rocketcompat.check.whole import check_store
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, CQ_UNIT
from rocketcompat.inspect.diff import diff
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.message_table import table_of
from rocketcompat.repair.apply import repair
from rocketcompat.repair.log import PROPERTY_DAMAGED
from tubestore.cli.kit.demo import Steps, timed
from tubestore.clock import SystemClock
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import copy_file
from tubestore.core.vfs import OsVfs

#: Of what a copy needs; the shards are built from the log.
_COPIED = (COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, "index", "checkpoint", "lock")
_DAMAGED_BODIES = 3


def damage_and_mend(source: Path, copy: Path, steps: Steps) -> bool:
    """Return whether all damage was found and mended, and nothing else is different."""
    clock = timed()
    _copy(source, copy)
    _damage(copy)
    steps.done("damage", f"{_DAMAGED_BODIES} bodies, a queue, a queue's tail", clock())
    directory = StoreDirectory(copy)
    clock = timed()
    found = list(check_store(directory))
    steps.done("check", f"{len(found)} findings", clock())
    clock = timed()
    kept = Quarantine(directory.vfs, directory.root)
    done = list(repair(directory, clock=SystemClock(), quarantine=kept))
    left = list(check_store(StoreDirectory(copy)))
    steps.done("repair", f"{len(done)} actions; {len(left)} findings left", clock())
    clock = timed()
    rows = list(diff(StoreDirectory(source), StoreDirectory(copy)))
    marked = _marked(StoreDirectory(copy))
    steps.done("diff", f"{len(rows)} differ, {marked} marked as lost", clock())
    return bool(found) and not left and len(rows) == marked == _DAMAGED_BODIES


def _copy(source: Path, target: Path) -> None:
    """Copy files with their holes: a log of 1 GiB is nearly empty here."""
    vfs = OsVfs()
    for name in _COPIED:
        top = source / name
        for path in [top, *sorted(top.rglob("*"))]:
            place = target / path.relative_to(source)
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif path.is_file():
                copy_file(vfs, str(path), str(place)).close()


def _damage(root: Path) -> None:
    """Flip a byte of some bodies; lose a queue, and the last units of another."""
    directory = StoreDirectory(root)
    piece = next(p for p in directory.scan_log() if not isinstance(p, Gap))
    bodies, _ = piece.body_places
    step = len(piece) // (_DAMAGED_BODIES + 1)
    file = OsVfs().open(directory.log.files[0].path)
    for row in range(step, step * (_DAMAGED_BODIES + 1), step):
        place = int(bodies[row]) + piece.base - directory.log.min_offset
        (byte,) = file.pread(1, place)
        file.pwrite(bytes((byte ^ 1,)), place)
    file.close()
    queues = list(directory.queue_names())
    lost, cut = (Path(directory.queue_path(*key)) / f"{0:020d}" for key in queues[:2])
    lost.unlink()
    tail = OsVfs().open(str(cut))
    tail.pwrite(bytes(10 * CQ_UNIT.size), 20 * CQ_UNIT.size)
    tail.close()


def _marked(directory: StoreDirectory) -> int:
    """Count the records that take the place of lost ones."""
    count = 0
    for piece in directory.scan_log():
        if not isinstance(piece, Gap):
            maps = table_of(piece)["properties"].to_pylist(maps_as_pydicts="strict")
            count += sum(PROPERTY_DAMAGED in properties for properties in maps)
    return count
