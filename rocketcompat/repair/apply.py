"""Carries out a plan so that a crash in the middle leaves a store that can be repaired.

All under the store's lock (StoreLocked while a broker runs). Every file is replaced by a new one
and a rename, never changed in place; its old content is in quarantine before. The log comes first.
Then the marks that cover queues and index are removed, durably. The `abort` file goes last. Each
step is also a step of a recovery. So a crash leaves a store with less wrong in it, and a second run
finds the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rocketcompat.files.progress import ProgressFile
from rocketcompat.formats import parse_offset_name
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.actions import RepairPlan
from rocketcompat.repair.overlay import FileChange
from rocketcompat.repair.places import HELD_SUFFIX
from rocketcompat.repair.plan import plan_repair
from rocketcompat.repair.rebuild import Watch, rebuild
from tubestore.clock import Clock
from tubestore.core.old_paths import renamed_keyword
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import copy_file, make_directory
from tubestore.core.vfs import OsVfs, Vfs, VfsFile

_ZERO_STEP = 8 << 20


@renamed_keyword("told", "watch")
def repair(
    directory: StoreDirectory,
    *,
    clock: Clock,
    quarantine: Quarantine,
    keep_bodies: bool = False,
    watch: Watch = lambda _done, _all: None,
) -> Iterator[dict[str, Any]]:
    """Plan and carry out; yields a row an action once it is done. The caller holds the lock."""
    plan = plan_repair(directory, keep_bodies=keep_bodies)
    by_path: dict[str, list[dict[str, Any]]] = {}
    for action in plan.actions:
        by_path.setdefault(action.path, []).append(action.as_row())
    for path in _steps(directory, plan, clock, quarantine, watch):
        yield from by_path.pop(path, [])
    for rows in by_path.values():  # damage that nothing mends
        yield from rows


def _steps(
    directory: StoreDirectory, plan: RepairPlan, clock: Clock, quarantine: Quarantine, watch: Watch
) -> Iterator[str]:
    """Do one step after the other; yields the path of each."""
    vfs, logs = directory.vfs, directory.log.directories
    if plan.moves:
        yield from _put_back(vfs, plan.moves, quarantine)
    # The log first: the marks record where a torn end may be, and have to go before the rest.
    for of_log in (True, False):
        if not of_log and not plan.is_empty:
            ProgressFile(vfs, directory.root).forget()
        for path in sorted(plan.removed, reverse=True):
            if (os.path.dirname(path) in logs) is of_log:
                quarantine.move(path)
                yield path
        for path, change in plan.changes.items():
            if (os.path.dirname(path) in logs) is of_log:
                _put(vfs, change, quarantine)
                yield path
    if plan.rebuilds:
        options = {**directory.inferred, **directory.options}
        mended = StoreDirectory(directory.root, options, vfs)
        for row in rebuild(mended, plan.rebuilds, clock=clock, quarantine=quarantine, watch=watch):
            yield row["path"]
    for path in plan.last:
        quarantine.move(path)
        yield path


def _put_back(vfs: Vfs, moves: dict[str, str], quarantine: Quarantine) -> Iterator[str]:
    """Give files of the log the names of their places, durably; yields each path that got one.

    All of them get a second name before the first is replaced, so a crash loses none.
    """
    held: dict[str, str] = {}
    for target, source in moves.items():
        directory, name = os.path.split(target)
        held[target] = os.path.join(directory + HELD_SUFFIX, name)
        if source != held[target]:
            _hold(vfs, source, held[target])
    directories = sorted({os.path.dirname(path) for path in held.values()})
    for directory in directories:
        vfs.sync_directory(directory)
        vfs.sync_directory(os.path.dirname(directory))
    for target in moves:
        if vfs.exists(target) and target not in moves.values():
            quarantine.keep(target)
        vfs.rename(held[target], target)
        vfs.sync_directory(os.path.dirname(target))
        yield target
    for source in set(moves.values()) - set(moves):
        if vfs.exists(source):
            vfs.remove(source)
            vfs.sync_directory(os.path.dirname(source))
    for directory in directories:
        for name, _, _ in vfs.entries(directory):
            vfs.remove(os.path.join(directory, name))
        vfs.remove_directory(directory)
        vfs.sync_directory(os.path.dirname(directory))


def _hold(vfs: Vfs, path: str, place: str) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    make_directory(vfs, os.path.dirname(place))
    if vfs.exists(place):
        vfs.remove(place)
    try:
        vfs.link(path, place)
    except OSError:
        copy = copy_file(vfs, path, place)
        copy.sync()
        copy.close()


def _put(vfs: Vfs, change: FileChange, quarantine: Quarantine) -> None:
    """Give a file its new content under its name, durably, and keep the old content."""
    path, directory = change.path, os.path.dirname(change.path)
    made = make_directory(vfs, directory)
    there = vfs.exists(path)
    if there:
        quarantine.keep(path)
    if parse_offset_name(os.path.basename(path)) is None:  # a checkpoint, a configuration
        vfs.replace_file(path, change.read(None, change.size, 0))
        return
    # Beside the directory: a broker does not start with a strange file in it.
    unborn = f"{directory}.new"
    if vfs.exists(unborn):
        vfs.remove(unborn)
    if there and not change.fresh:
        file = copy_file(vfs, path, unborn, change.size)
    else:
        file = vfs.open(unborn, create=True)
        file.truncate(change.size)
    _apply(file, change)
    file.sync()
    file.close()
    if there and isinstance(vfs, OsVfs):
        status = os.stat(path)  # a broker deletes by a file's age
        os.utime(unborn, ns=(status.st_atime_ns, status.st_mtime_ns))
    vfs.rename(unborn, path)
    for changed in (directory, os.path.dirname(directory), *made):
        vfs.sync_directory(changed)


def _apply(file: VfsFile, change: FileChange) -> None:
    if change.zero_from is not None:
        position = file.next_data(change.zero_from)
        while position is not None and position < change.size:
            size = min(_ZERO_STEP, change.size - position)
            file.pwrite(bytes(size), position)
            position = file.next_data(position + size) if position + size < change.size else None
    for start, data in change.patches:
        file.pwrite(data, start)
