"""What both demos share: real lines to store, steps with their times, a child to be killed.

Used by `tubestore demo` (the engine) and `rocketcompat demo` (the full stack).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

TOPIC = "source"
DEFAULT_LINES = 400_000
KILLED_AFTER = 5_000
BATCH_ROWS = 10_000
#: A line's kind, by how it begins; the filter item of its message.
KINDS = ("def", "class", "import", "from", "return", "if", "for", "#")


@dataclass(slots=True)
class Steps:
    """Prints each step as it ends and keeps the figures for the table at the end."""

    console: Console
    rows: list[tuple[str, str, float, int]] = field(default_factory=list)

    def done(self, name: str, what: str, seconds: float, messages: int = 0) -> None:
        """Report a step: `messages` of 0 means that no rate is shown."""
        self.rows.append((name, what, seconds, messages))
        rate = f"{messages / seconds:>11,.0f}/s" if messages and seconds else ""
        self.console.print(f"  {name:<16}{what:<38}{seconds:6.2f} s{rate}", highlight=False)

    def table(self, title: str) -> None:
        """Print the rates of all steps that had messages."""
        table = Table(title=title, title_justify="left")
        for heading in ("step", "messages", "seconds", "messages/s"):
            table.add_column(heading, justify="left" if heading == "step" else "right")
        for name, _, seconds, messages in self.rows:
            if messages:
                rate = f"{messages / seconds:,.0f}"
                table.add_row(name, f"{messages:,}", f"{seconds:.2f}", rate)
        self.console.print(table)


def begin(out: Path, title: str, console: Console | None) -> Steps:
    """Empty the directory of a demo, print its title, and return what prints its steps."""
    steps = Steps(console or Console())
    prepare(out)
    steps.console.print(f"[bold]{title}[/bold]")
    return steps


def report_kill(module: str, root: Path, steps: Steps) -> list[list[str]]:
    """Kill a writer in the middle (`kill_in_the_middle`) as a step."""
    clock = timed()
    acknowledged = kill_in_the_middle(module, root, KILLED_AFTER)
    steps.done("kill", f"-9 after {len(acknowledged):,} acknowledgements", clock())
    return acknowledged


def report_check(
    check: Callable[[Path], Iterable[Any]], roots: Iterable[Path], steps: Steps
) -> int:
    """Check the demo's stores as a step; returns the number of findings."""
    clock = timed()
    findings = sum(1 for root in roots for _ in check(root))
    steps.done("check", f"{findings} findings in both stores", clock())
    return findings


def load_lines(paths: Sequence[Path], limit: int) -> tuple[pa.Table, int]:
    """Return (key, number, body, filter_item) of up to `limit` lines that are not blank, and files.

    Without paths: the sources of the Python standard library, which every machine has.
    """
    roots = list(paths) or [Path(sysconfig.get_paths()["stdlib"])]
    batches: list[pa.RecordBatch] = []
    count = files = 0
    for path in _files(roots):
        lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
        lines = lines[: limit - count]
        if not lines:
            continue
        name = str(path.relative_to(_root_of(path, roots)))
        numbers = pa.array(range(1, len(lines) + 1), pa.int32())
        keys = pa.repeat(name, len(lines))
        batches.append(
            pa.record_batch(
                [keys, numbers, pa.array(lines, pa.large_binary())], ["key", "number", "body"]
            )
        )
        count += len(lines)
        files += 1
        if count >= limit:
            break
    if not batches:
        raise FileNotFoundError(f"no lines in {', '.join(map(str, roots))}")
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.append_column("filter_item", kinds_of(table.column("body"))), files


def _files(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        else:
            pattern = "*.py" if root == Path(sysconfig.get_paths()["stdlib"]) else "*"
            for path in sorted(root.rglob(pattern)):
                if path.is_file() and not {"site-packages", ".git"} & set(path.parts):
                    yield path


def _root_of(path: Path, roots: Sequence[Path]) -> Path:
    return next(r if r.is_dir() else r.parent for r in roots if path.is_relative_to(r))


def kinds_of(bodies: Any) -> Any:
    """Return each line's kind, null for lines that begin in no known way."""
    trimmed = pc.binary_slice(bodies.cast(pa.binary()), 0, 60)
    text = pc.replace_substring_regex(trimmed, r"^\s+", "")
    kinds = pa.chunked_array([pa.nulls(len(bodies), pa.string())])
    for kind in KINDS:
        pattern = f"^{kind}" if kind == "#" else rf"^{kind}\b"
        kinds = pc.if_else(pc.match_substring_regex(text, pattern), kind, kinds)
    return kinds


def batches_of(table: pa.Table, rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """Cut a table into batches."""
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def kill_in_the_middle(module: str, root: Path, acknowledgements: int) -> list[list[str]]:
    """Run `python -m module root`, kill -9 it after so many lines of output; returns their words.

    Each line is one acknowledgement, printed by the child after its append had returned.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    lines: list[list[str]] = []
    for line in child.stdout:
        lines.append(line.split())
        if len(lines) == acknowledgements:
            os.kill(child.pid, signal.SIGKILL)
    child.stdout.close()
    child.wait()
    # What the pipe still held was acknowledged too; a last line may be cut.
    width = len(lines[0]) if lines else 0
    return [words for words in lines if len(words) == width]


def prepare(directory: Path) -> None:
    """Empty a directory that a demo made; anything else in the way is left alone."""
    if directory.exists():
        known = {"engine", "engine-killed", "stack", "stack-killed", "figures.json"}
        strange = [entry.name for entry in directory.iterdir() if entry.name not in known]
        if strange:
            raise FileExistsError(
                f"{directory} holds {strange[0]}: not a demo's; give another --out"
            )
    directory.mkdir(parents=True, exist_ok=True)


def disk_bytes(directory: Path) -> tuple[int, int]:
    """Return (files, bytes allocated on disk) below a directory."""
    files = size = 0
    for path in directory.rglob("*"):
        if path.is_file():
            files += 1
            size += path.stat().st_blocks * 512
    return files, size


def fresh(directory: Path) -> Path:
    """Return an empty directory at this place."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def timed() -> Any:
    """Return a function that gives the seconds since this call."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
