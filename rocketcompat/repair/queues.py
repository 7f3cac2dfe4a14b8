"""Plans changes that make the files of queues match the log. Reads only.

A queue with lost units of its extension is not mended by single files: queues and extension are
built anew together, since their addresses belong together.
"""

from __future__ import annotations

import os

import numpy as np

from rocketcompat.check.queues import check_extensions
from rocketcompat.formats import (
    CONSUME_QUEUE_DIRECTORY,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    offset_name,
    parse_offset_name,
)
from rocketcompat.inspect.batch_queues import BatchQueueView
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.queues import AnyQueueView, QueueView, QueueViews
from rocketcompat.queues.units import Units, is_unit
from rocketcompat.repair.actions import RepairPlan
from rocketcompat.repair.overlay import FileChange
from tubestore.core.quarantine import Action
from tubestore.core.trees import list_by_start


def plan_queues(directory: StoreDirectory, plan: RepairPlan) -> None:
    """Plan what the queues of all kinds need; `directory` has the log as it will be."""
    for path in directory.misplaced_queues():
        plan.remove(path, 0, "ordinary queues of a topic of batches: 5.x refuses to start")
    views = QueueViews(directory)
    lost = [
        found["message"] for view in views.ordinary() for found in check_extensions(directory, view)
    ]
    if lost:
        plan.rebuilds.append(CONSUME_QUEUE_DIRECTORY)
        path = directory.path(CONSUME_QUEUE_DIRECTORY)
        plan.actions.append(Action(path, "rebuild", 0, 0, f"with its extension: {lost[0]}"))
    for view in () if lost else views.ordinary():
        _plan_queue(directory, plan, view)
    for of_batches in views.of_batches():
        _plan_batch_queue(directory, plan, of_batches)


def _plan_batch_queue(directory: StoreDirectory, plan: RepairPlan, view: BatchQueueView) -> None:
    """Make the files of a queue of inner batches hold its units, one behind the other."""
    size = view.units_per_file * view.kind.layout.size
    files = _files_of(directory, plan, view)
    raw = view.units.tobytes()
    first = view.first_place * view.kind.layout.size
    ends = [start + size for start in files]
    for start in range(first, max([first + len(raw), *ends], default=first), size):
        content = raw[start - first : start - first + size]
        path = directory.queue_path(view.topic, view.queue_id, view.kind.directory)
        full, length = files.get(start, (os.path.join(path, offset_name(start)), -1))
        if not content:
            if length >= 0:
                plan.remove(full, length, "a queue file behind the queue's end")
            continue
        wanted = content.ljust(size, b"\0")
        there = directory.vfs.read_file(full) if length >= 0 else b""
        if there != wanted:
            action = "write" if length >= 0 else "create"
            message = f"{view.topic}/{view.queue_id}: the units of the log"
            plan.change(Action(full, action, 0, size, message),
                        FileChange(full, size, ((0, wanted),), fresh=True))  # fmt: skip


def _files_of(
    directory: StoreDirectory, plan: RepairPlan, view: AnyQueueView
) -> dict[int, tuple[str, int]]:
    """Return path and length of a queue's files by their start; other files are removed."""
    path = directory.queue_path(view.topic, view.queue_id, view.kind.directory)
    found = list_by_start(directory.vfs, path, parse_offset_name)
    for other, _, length in found.others:
        plan.remove(other, length, "no file of a queue: a real broker refuses to start")
    return {start: (held, length) for start, held, length in found.files}


def _plan_queue(directory: StoreDirectory, plan: RepairPlan, view: QueueView) -> None:
    """Plan changes that make a queue's files match the log."""
    path = directory.queue_path(view.topic, view.queue_id)
    size = directory.config.consume_queue_file_size
    files = _files_of(directory, plan, view)
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
    """True if a file of a queue may differ from what it should be."""
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
    message = f"{view.topic}/{view.queue_id}: {what} as in the log"
    plan.change(Action(path, action, position, len(wrong) * CQ_UNIT.size, message),
                FileChange(path, size, ((0, content),), fresh=True))  # fmt: skip


def _fill(units: Units) -> None:
    """Keep the units; fill the other places before a queue's first message."""
    fill = np.zeros(1, CQ_UNIT.dtype)
    fill["size"] = CQ_PRE_FILL_SIZE
    units[~is_unit(units)] = fill
