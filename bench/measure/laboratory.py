"""Run blocks: a worker for each cell, rounds in turning order, limits, and lines that can go on.

Every result is a line of JSON. A block's lines are written together when it is complete, so a run
that was interrupted goes on with the first block that is missing.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import contender
from bench.measure import system
from bench.measure.calibration import Calibration, calibrate, disturbed
from bench.measure.harness import file_system
from bench.measure.worker import Task, lacking, serve
from bench.workloads.sizes import Size
from bench.workloads.works import Amount, Block

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """How often a cell runs, and how far it may go."""

    rounds: int
    #: How long a run should take at most.
    run_seconds: float
    #: How long one request to a worker may take, and all runs of a cell together.
    limit_seconds: float = 180.0
    cell_seconds: float = 180.0
    #: Memory that no file backs, of a worker and its children, in MB.
    limit_mb: float = 8000.0
    limit_files: int = 400_000
    #: True: system calls are counted after the rounds, where there is strace.
    counts_calls: bool = False
    #: How long all blocks may take together. A block has its share, and each cell one round at
    #: least. None: there is no such limit.
    all_seconds: float | None = None
    #: How long this block may take, by `all_seconds`.
    block_seconds: float = float("inf")

    @property
    def run_limit(self) -> float:
        """How long a run may take with all around it, if every round is to be run."""
        return self.cell_seconds / (self.rounds + 1)


PLANS: dict[Amount, Plan] = {
    "full": Plan(rounds=5, run_seconds=1.0),
    "quick": Plan(
        rounds=3, run_seconds=0.15, limit_seconds=60.0, cell_seconds=20.0, all_seconds=165.0
    ),
    "tiny": Plan(rounds=2, run_seconds=0.05, limit_seconds=60.0, cell_seconds=20.0),
}

#: Messages of the two runs that count system calls, and the same where each is synced.
_COUNTED, _COUNTED_SYNCS = (2000, 6000), (200, 600)
#: With more partitions than this, the making of files under strace would take minutes; and how
#: long either run may take.
_COUNTED_PLACES, _COUNTED_SECONDS = 10_000, 20.0
_GUARD = 'a program calls bench.compare below `if __name__ == "__main__":`'
Note = Callable[[dict[str, Any]], None]


@dataclass
class _Cell:
    """A contender in its process."""

    contender: Any
    process: Any
    pipe: Connection
    place: Path
    plan: Plan
    spent: float = 0.0
    #: What its process has started, as far as it was seen.
    started: set[Any] = field(default_factory=set)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, request: str | None = None, seconds: float | None = None) -> dict[str, Any]:
        """Send a request and return the answer; Unavailable beyond a limit, that of the plan."""
        import psutil

        if request is not None:
            self.pipe.send(request)
        begin = time.monotonic()
        free = system.free_files(self.place.parent)
        process = psutil.Process(self.process.pid)
        limit = self.plan.limit_seconds if seconds is None else seconds
        while not self.pipe.poll(_POLL_SECONDS):
            if time.monotonic() - begin > limit:
                raise Unavailable(f"it took longer than the limit of {limit:g} s")
            self._check(process, free)
        self.spent += time.monotonic() - begin
        try:
            answer: dict[str, Any] = self.pipe.recv()
        except EOFError as error:
            self.process.join()
            ended = f"its process ended with {self.process.exitcode}"
            raise Unavailable(ended if request else f"{ended}; {_GUARD}") from error
        if "left_out" in answer:
            raise Unavailable(answer["left_out"])
        return answer

    def _check(self, process: Any, free: int) -> None:
        plan = self.plan
        family = _family(process)
        self.started.update(family[1:])
        memory = sum(system.anonymous_mb(one.pid) for one in family)
        if memory > plan.limit_mb:
            raise Unavailable(f"it took more than the limit of {plan.limit_mb:g} MB")
        if free - system.free_files(self.place.parent) > plan.limit_files:
            raise Unavailable(f"it made more than the limit of {plan.limit_files:,} files")

    def end(self) -> None:
        """End the process, with all that it has started, and remove its files."""
        import psutil

        self.started.update(_below(self.process.pid))
        with contextlib.suppress(OSError):
            self.pipe.send("end")
        self.process.join(5)
        # The process leads a session of its own: what is left in its group was started by it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for one in self.started:  # in a session of its own
            with contextlib.suppress(psutil.Error):
                one.kill()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.place, ignore_errors=True)


def _family(process: Any) -> list[Any]:
    import psutil

    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _below(pid: int) -> list[Any]:
    """Return the processes that one has started, and those that these have."""
    import psutil

    try:
        return _family(psutil.Process(pid))[1:]
    except psutil.NoSuchProcess:
        return []


def name_of(which: Any) -> str:
    """Return the name that results have for a contender: the short one, or that of its class."""
    if isinstance(which, str) and ":" not in which:
        return which
    return str(contender(which).name)


def run_block(
    block: Block, amount: Amount, text: bytes, place: Path, note: Note, plan: Plan
) -> None:
    """Run one block; `note` gets a row for each run, and for each contender that is left out."""
    size = block.size.with_messages(block.work.messages(amount, block.size))
    head = {"work": block.work.name, **size.as_dict(), "file_system": file_system(place)}
    head["stored"] = size.messages
    cells: list[_Cell] = []
    begin = time.monotonic()
    try:
        for number, which in enumerate(block.contenders):
            row = {"kind": "left_out", **head, "layout": name_of(which)}
            try:
                made = contender(which)
                if reason := lacking(made, block.work, size):
                    raise Unavailable(reason)
                home = place / f"cell-{number}"
                task = Task(made, block.work, size, home, text, plan.run_seconds, plan.run_limit)
                cells.append(_started(which, task, plan))
                cells[-1].ask()
                cells[-1].spent = 0.0  # what it builds and reads first is not of its runs
            except Unavailable as reason_why:
                note(row | {"reason": str(reason_why)})
                if cells and cells[-1].contender is which:
                    cells.pop().end()
        for number in range(plan.rounds if cells else 0):
            if number and time.monotonic() - begin > plan.block_seconds:
                break
            for cell in _turned(cells, number):
                if cell.spent > plan.cell_seconds and cell.runs:
                    continue
                row = head | {"layout": name_of(cell.contender), "round": number}
                try:
                    cell.runs.append(cell.ask("run")["measure"])
                    note({"kind": "run", **row, **cell.runs[-1]})
                except Unavailable as reason_why:
                    note({"kind": "left_out", **row, "reason": str(reason_why)})
                    cells.remove(cell)
                    cell.end()
        for cell in cells if plan.counts_calls and block.work.counted else ():
            row = {"kind": "calls", **head, "layout": name_of(cell.contender)}
            if found := _system_calls(cell, size):
                note(row | found)
    finally:
        for cell in cells:
            cell.end()


def _system_calls(cell: _Cell, size: Size) -> dict[str, Any]:
    """Count the system calls of a few and of more messages; what they differ by is for messages."""
    if hasattr(contender(cell.contender), "drivers"):
        return {"reason": "strace would make its virtual machine ten times slower"}
    if size.places > _COUNTED_PLACES:
        return {"reason": f"more than {_COUNTED_PLACES:,} partitions take too long with strace"}
    few, many = _COUNTED_SYNCS if size.durability == "fsync" else _COUNTED
    few, many = few * size.threads, many * size.threads
    if size.places > few:  # the few make the files of all
        few, many = size.places, 2 * size.places
    counted = []
    for messages in (few, many):
        try:
            with system.counting_calls(cell.process.pid) as calls:
                done = cell.ask(f"count {messages}", _COUNTED_SECONDS)["messages"]
        except Unavailable as reason:
            return {"reason": str(reason)}
        counted.append((done, calls))
    (first, less), (second, more) = counted
    if not more or second <= first:
        return {}
    names = {name: (more[name] - less.get(name, 0)) / (second - first) for name in more}
    kept = {name: round(value, 4) for name, value in names.items() if value > 0.001}
    return {"calls_each": round(sum(kept.values()), 4), "by_name": kept}


def _turned(cells: list[_Cell], number: int) -> list[_Cell]:
    first = number % len(cells) if cells else 0
    return cells[first:] + cells[:first]


def _started(which: Any, task: Task, plan: Plan) -> _Cell:
    try:
        pickle.dumps((task.contender, task.work))
    except Exception as error:  # whatever its own pickling does
        raise Unavailable(
            f"it cannot be sent to the process of its cell ({error}); define it, and what it is "
            "made of, at the top of a module"
        ) from error
    # A server that has imported everything forks the workers: each starts in some milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.measure.worker"])
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, task))
    with _main_hidden():
        try:
            process.start()
        except BrokenPipeError as error:
            raise Unavailable(f"its process did not start; {_GUARD}") from error
    there.close()
    return _Cell(which, process, here, task.place, plan)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep a process from importing a main program that is no file: piped, or of a notebook."""
    main = sys.modules["__main__"]
    name = getattr(main, "__file__", None)
    if name is None or Path(name).is_file():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = name


class Results:
    """A file of JSON lines; what was complete in it is not measured again."""

    def __init__(
        self, path: Path, head: dict[str, Any], *, resume: bool, again: Collection[str] = ()
    ) -> None:
        if path.exists() and not path.is_file():
            raise Unavailable(f"{path}: not a file; results are written to a file of their own")
        self.path = path
        #: The labels of blocks that are measured again: their lines take the place of the earlier.
        self._again = again
        #: Of the code that measures what is added.
        self.commit = head.get("commit")
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = path.exists() and resume
        #: The blocks that are complete, with their contenders; None for rows without these.
        self._done: dict[str, set[str] | None] = {}
        if earlier:
            rows = read(path)
            _compatible(rows[:1], head)
            for row in rows:
                if row["kind"] == "block":
                    names = row.get("contenders")
                    self._done[row["label"]] = None if names is None else set(names)
            self._replace(rows)  # without a block that was torn off: it is measured again
        else:
            self._replace([head])

    def has(self, block: Block) -> bool:
        """True if a block was measured, with all of its contenders, and is not wanted again."""
        if block.label not in self._done or block.label in self._again:
            return False
        known = self._done[block.label]
        lacking = [] if known is None else sorted(_names(block) - known)
        if lacking:
            raise Unavailable(
                f"{self.path} has {block.label!r} without {lacking[0]}: begin a new file"
            )
        return True

    def layouts(self, label: str) -> list[str]:
        """Return the contenders that the file has of a block, in their order; none without it."""
        rows = _by_block(read(self.path)).get(label, [])
        return list(dict.fromkeys(row["layout"] for row in rows if "layout" in row))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append the lines of a block, or put them where the file has it already."""
        label = rows[-1]["label"]
        if label not in self._done:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_lines(rows))
            return
        found = _by_block(read(self.path)) | {label: rows}
        self._replace(row for block in found.values() for row in block)

    def _replace(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the file anew; a kill meanwhile leaves what it was."""
        path = self.path.resolve()
        beside = path.with_name(path.name + ".new")
        beside.write_text(_lines(rows), encoding="utf-8")
        beside.replace(path)


def _by_block(rows: Iterable[dict[str, Any]]) -> dict[str, Sequence[dict[str, Any]]]:
    """Return the lines of each block by its label; the head is under ""."""
    found: dict[str, Sequence[dict[str, Any]]] = {}
    lines: list[dict[str, Any]] = []
    for row in rows:
        lines.append(row)
        if row["kind"] in ("laboratory", "block"):
            found[row.get("label", "")] = lines
            lines = []
    return found


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file: the head, and those of complete blocks.

    Rows behind the last complete block are left out: they are of a block that was torn off.
    Unavailable if lines inside are damaged or missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unavailable(f"{path}: damaged: {error}") from error
    rows: list[dict[str, Any]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise Unavailable(f"{path}, line {number}: not JSON: {error}") from error
    if not rows or not all(isinstance(row, dict) and "kind" in row for row in rows):
        raise Unavailable(f"{path}: these are no results of python -m bench run")
    if rows[0]["kind"] != "laboratory":
        return rows
    last = 0
    for number, row in enumerate(rows):
        if row["kind"] == "block":
            missing = row.get("rows", number - last - 1) - (number - last - 1)
            if missing:
                raise Unavailable(
                    f"{path}, line {number + 1}: {abs(missing)} rows are "
                    f"{'missing from' if missing > 0 else 'too many in'} the block {row['label']!r}"
                )
            last = number
    return rows[: last + 1]


def _names(block: Block) -> set[str]:
    return {name_of(which) for which in block.contenders}


def _compatible(found: list[dict[str, Any]], head: dict[str, Any]) -> None:
    """Refuse to go on with results of another machine or amount."""
    earlier = found[0] if found else {}
    for name in ("processor", "cores", "python", "scale", "payload"):
        if earlier.get(name) != head.get(name):
            raise Unavailable(
                f"these results cannot go on: their {name} is {earlier.get(name)!r}, "
                f"and here it is {head.get(name)!r}"
            )


def run(
    blocks: Iterable[Block],
    amount: Amount,
    text: bytes,
    places: Callable[[Block], Path],
    results: Results,
    progress: Callable[[Block, list[dict[str, Any]], int, int], None],
    plan: Plan,
) -> None:
    """Run blocks, with a calibration before and after each, and write their lines."""
    wanted = list(blocks)
    calibrations: list[Calibration] = []
    begin = time.monotonic()
    for number, block in enumerate(wanted, 1):
        if results.has(block):
            continue
        place = places(block)
        began = time.monotonic()
        rows: list[dict[str, Any]] = []
        before = calibrate(place)
        share = plan.block_seconds
        if plan.all_seconds is not None:
            left = plan.all_seconds - (time.monotonic() - begin)
            share = max(0.0, left) / (len(wanted) - number + 1)
        run_block(block, amount, text, place, rows.append, plan_with(plan, block_seconds=share))
        after = calibrate(place)
        calibrations += [before, after]
        row = {
            "kind": "block",
            "label": block.label,
            "rows": len(rows),
            "commit": results.commit,
            "took_seconds": round(time.monotonic() - began, 1),
            "contenders": sorted(_names(block)),
            "before": before.as_dict(),
            "after": after.as_dict(),
            "disturbed": sorted(
                {*disturbed(before, calibrations), *disturbed(after, calibrations)}
            ),
        }
        rows.append(row)
        results.add(rows)
        progress(block, rows, number, len(wanted))


def plan_with(plan: Plan, **changes: Any) -> Plan:
    """Return a plan with the changes that are given."""
    return Plan(**{**asdict(plan), **{k: v for k, v in changes.items() if v is not None}})
