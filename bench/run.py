"""The command: `python -m bench`, `make bench ARGS="--quick"`."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench.layouts.layout import Unavailable, load_layout
from bench.measure.harness import Run, Skipped, compete, file_system, machine
from bench.report.table import from_file, lines, machine_line
from bench.workloads.payload import Payload, standard_library
from bench.workloads.table import WORKLOADS
from bench.workloads.workload import Scale, Workload

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCRATCH = RESULTS / "scratch"
SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _HELD = "tubestore-bench-", "held"
ROOM_BYTES = {"full": 8 << 30, "quick": 4 << 30, "tiny": 1 << 28}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    names = "\n".join(f"  {w.name:24}{w.question}" for w in WORKLOADS)
    found = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the store beside the machine's limits and its rivals.",
        epilog=f"workloads:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--quick", action="store_true", help="about a minute, without Java")
    found.add_argument(
        "--tiny", action="store_true", help="only show that it works; the rates mean nothing"
    )
    found.add_argument(
        "--only", action="append", metavar="NAME", help="a workload, or the beginning of names"
    )
    found.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where to write: tmpfs (/dev/shm, the default with room) or a disk",
    )
    found.add_argument("--rounds", type=int, metavar="N", help="measured runs of each contestant")
    found.add_argument("--profile", metavar="NAME", help="print where the time of a workload goes")
    found.add_argument(
        "--layout",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="compare a layout of your own, too",
    )
    found.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="results as JSON lines (default: bench/results/)",
    )
    found.add_argument(
        "--report", type=Path, metavar="FILE", help="print the table of an earlier run"
    )
    return found


def choose(names: list[str] | None) -> list[Workload]:
    """Return the workloads with names that begin with one of these; all without any."""
    known = {w.name for w in WORKLOADS}
    chosen = [
        w
        for w in WORKLOADS
        if names is None
        or any(w.name == n or (n not in known and w.name.startswith(n)) for n in names)
    ]
    if not chosen:
        raise Unavailable(f"no workload begins with {' or '.join(names or [])}; see --help")
    return chosen


def place_for(directory: Path | None, scale: Scale) -> Path:
    """Return where to write: what was asked for, else shared memory with room, else a disk."""
    if directory is None:
        room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free
        fits = room and room >= ROOM_BYTES[scale] and file_system(SHARED_MEMORY) == "tmpfs"
        directory = SHARED_MEMORY if fits else SCRATCH
        directory.mkdir(parents=True, exist_ok=True)
    elif not directory.is_dir():
        raise Unavailable(f"{directory}: there is no such directory to write to")
    _remove_left(directory)
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    held = os.open(place, os.O_RDONLY)  # until this process ends
    fcntl.flock(held, fcntl.LOCK_EX)
    (place / _HELD).touch()
    return place


def _remove_left(directory: Path) -> None:
    """Remove what killed runs have left: their directories are locked no longer."""
    for left in directory.glob(f"{_PREFIX}*/{_HELD}"):
        with suppress(OSError):  # it is locked, of another user, or gone
            lock = os.open(left.parent, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent)
            finally:
                os.close(lock)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    asked = parser().parse_args(arguments)
    scale: Scale = "tiny" if asked.tiny else "quick" if asked.quick else "full"
    logging.getLogger("tests.compat.interop").setLevel(
        logging.ERROR
    )  # what the JVMs warn of, every time
    places: list[Path] = []
    try:
        if asked.report:
            print("\n".join(from_file(asked.report)))
            return 0
        layouts = [load_layout(name) for name in asked.layout]
        payload = standard_library()
        places.append(place_for(asked.dir, scale))
        if asked.profile:
            from bench.measure.profiling import profile

            for workload in choose([asked.profile]):
                print(profile(workload, scale, payload, _disk(workload, places, scale)))
            return 0
        workloads = [w.with_layouts(layouts) for w in choose(asked.only)]
        output = asked.output or RESULTS / time.strftime("%Y%m%dT%H%M%S.jsonl", time.gmtime())
        measure(workloads, scale, payload, places, output, asked.rounds)
        return 0
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def measure(
    workloads: list[Workload],
    scale: Scale,
    payload: Payload,
    places: list[Path],
    output: Path,
    rounds: int | None = None,
) -> None:
    """Run the workloads, print a table each, and write every run as a JSON line."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", encoding="utf-8") as file:
        found = machine(payload, scale)
        print(json.dumps(found), file=file)
        print(machine_line(found) + "\n", flush=True)
        for workload in workloads:
            noted: list[Run | Skipped] = []

            def note(one: Run | Skipped, noted: list[Run | Skipped] = noted) -> None:
                noted.append(one)
                print(one.as_json(), file=file, flush=True)

            place = _disk(workload, places, scale)
            compete(workload, scale, payload, place, note, rounds)
            runs = [n for n in noted if isinstance(n, Run)]
            skipped = [n for n in noted if isinstance(n, Skipped)]
            table = lines(workload, runs, skipped, judge=scale != "tiny")
            print("\n".join(table), flush=True)


def _disk(workload: Workload, places: list[Path], scale: Scale) -> Path:
    """Return where this workload writes: not to a tmpfs if it asks how long a disk takes."""
    if not workload.needs_disk or file_system(places[0]) != "tmpfs":
        return places[0]
    if len(places) == 1:
        places.append(place_for(SCRATCH, scale))
    return places[1]
