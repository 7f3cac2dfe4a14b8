"""Run blocks: a worker for each cell, rounds in turning order, limits, and lines that can go on.

Every result is a line of JSON. A block's lines are written together when it is complete, so a run
that was interrupted goes on with the first block that is missing.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable
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
    cell_seconds: float = 90.0
    #: Memory that no file backs, of a worker and its children, in MB.
    limit_mb: float = 8000.0
    limit_files: int = 400_000
    #: True: system calls are counted after the rounds, where there is strace.
    counts_calls: bool = False


PLANS: dict[Amount, Plan] = {
    "full": Plan(rounds=5, run_seconds=1.0),
    "quick": Plan(rounds=3, run_seconds=0.15, limit_seconds=60.0, cell_seconds=20.0),
    "tiny": Plan(rounds=2, run_seconds=0.05, limit_seconds=60.0, cell_seconds=20.0),
}

#: Messages of the two runs that count system calls.
COUNTED = (2000, 6000)
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
    runs: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, request: str | None = None) -> dict[str, Any]:
        """Send a request and return the answer; Unavailable beyond a limit."""
        import psutil

        if request is not None:
            self.pipe.send(request)
        begin = time.monotonic()
        free = system.free_files(self.place.parent)
        process = psutil.Process(self.process.pid)
        while not self.pipe.poll(_POLL_SECONDS):
            self._check(time.monotonic() - begin, process, free)
        self.spent += time.monotonic() - begin
        try:
            answer: dict[str, Any] = self.pipe.recv()
        except EOFError as error:
            self.process.join()
            raise Unavailable(f"its process ended with {self.process.exitcode}") from error
        if "left_out" in answer:
            raise Unavailable(answer["left_out"])
        return answer

    def _check(self, seconds: float, process: Any, free: int) -> None:
        plan = self.plan
        if seconds > plan.limit_seconds:
            raise Unavailable(f"it took longer than the limit of {plan.limit_seconds:g} s")
        memory = sum(system.anonymous_mb(one.pid) for one in _family(process))
        if memory > plan.limit_mb:
            raise Unavailable(f"it took more than the limit of {plan.limit_mb:g} MB")
        if free - system.free_files(self.place.parent) > plan.limit_files:
            raise Unavailable(f"it made more than the limit of {plan.limit_files:,} files")

    def end(self) -> None:
        """End the process, with its children, and remove its files."""
        import psutil

        with contextlib.suppress(OSError):
            self.pipe.send("end")
        self.process.join(5)
        if self.process.is_alive():
            for one in _family(psutil.Process(self.process.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            self.process.join()
        self.pipe.close()
        shutil.rmtree(self.place, ignore_errors=True)


def _family(process: Any) -> list[Any]:
    import psutil

    try:
        return [process, *process.children(recursive=True)]
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
    try:
        for number, which in enumerate(block.contenders):
            row = {"kind": "left_out", **head, "layout": name_of(which)}
            try:
                made = contender(which)
                if reason := lacking(made, block.work, size):
                    raise Unavailable(reason)
                home = place / f"cell-{number}"
                task = Task(made, block.work, size, home, text, plan.run_seconds)
                cells.append(_started(which, task, plan))
                cells[-1].ask()
            except Unavailable as reason_why:
                note(row | {"reason": str(reason_why)})
                if cells and cells[-1].contender is which:
                    cells.pop().end()
        for number in range(plan.rounds if cells else 0):
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
        for cell in cells if plan.counts_calls else ():
            row = {"kind": "calls", **head, "layout": name_of(cell.contender)}
            if found := _system_calls(cell):
                note(row | found)
    finally:
        for cell in cells:
            cell.end()


def _system_calls(cell: _Cell) -> dict[str, Any]:
    """Count the system calls of a few and of more messages; what they differ by is for messages."""
    counted = []
    for messages in COUNTED:
        try:
            with system.counting_calls(cell.process.pid) as calls:
                done = cell.ask(f"count {messages}")["messages"]
        except Unavailable as reason:
            return {"reason": str(reason)}
        counted.append((done, calls))
    (few, less), (many, more) = counted
    if not more or many <= few:
        return {}
    names = {name: (more[name] - less.get(name, 0)) / (many - few) for name in more}
    kept = {name: round(value, 4) for name, value in names.items() if value > 0.001}
    return {"calls_each": round(sum(kept.values()), 4), "by_name": kept}


def _turned(cells: list[_Cell], number: int) -> list[_Cell]:
    first = number % len(cells) if cells else 0
    return cells[first:] + cells[:first]


def _started(which: Any, task: Task, plan: Plan) -> _Cell:
    # A server that has imported everything forks the workers: each starts in some milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.measure.worker"])
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, task))
    process.start()
    there.close()
    return _Cell(which, process, here, task.place, plan)


class Results:
    """A file of JSON lines; what was complete in it is not measured again."""

    def __init__(self, path: Path, head: dict[str, Any], *, resume: bool) -> None:
        self.path = path
        #: Of the code that measures what is added.
        self.commit = head.get("commit")
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = path.exists() and resume
        #: The blocks that are complete, with their contenders; None for rows without these.
        self._done: dict[str, set[str] | None] = {}
        if earlier:
            rows = read(path)
            _compatible(rows[:1], head)
            kept, block = rows[:1], list[dict[str, Any]]()
            for row in rows[1:]:
                block.append(row)
                if row["kind"] == "block":
                    kept += block
                    block = []
                    names = row.get("contenders")
                    self._done[row["label"]] = None if names is None else set(names)
            self._write(kept, "w")  # a block that was torn off goes: it is measured again
        else:
            self._write([head], "w")

    def has(self, block: Block) -> bool:
        """True if a block was measured, with all of its contenders."""
        if block.label not in self._done:
            return False
        known = self._done[block.label]
        lacking = [] if known is None else sorted(_names(block) - known)
        if lacking:
            raise Unavailable(
                f"{self.path} has {block.label!r} without {lacking[0]}: begin a new file"
            )
        return True

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append the lines of a block."""
        self._write(rows, "a")

    def _write(self, rows: Iterable[dict[str, Any]], mode: str) -> None:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file; a torn last line is left out."""
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
    return rows


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
    for number, block in enumerate(wanted, 1):
        if results.has(block):
            continue
        place = places(block)
        rows: list[dict[str, Any]] = []
        before = calibrate(place)
        run_block(block, amount, text, place, rows.append, plan)
        after = calibrate(place)
        calibrations += [before, after]
        row = {
            "kind": "block",
            "label": block.label,
            "commit": results.commit,
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
