"""The library: compare layouts at workloads and sizes, and get an Arrow table."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import contender, named
from bench.measure.laboratory import PLANS, Plan, name_of, run_block
from bench.run import SCRATCH, place_for
from bench.workloads.payload import MIX_MEDIAN
from bench.workloads.sizes import Size, text_of
from bench.workloads.works import BY_NAME, Amount, Block, Work

#: What identifies a cell.
KEY = (
    "work", "layout", "topics", "partitions", "body", "skew", "threads", "durability", "batch",
    "disk",
)  # fmt: skip
#: The contenders of a block store its messages next to each other, and some of them twice.
_COPIES = 8
#: The median of a cell's rounds is taken of these.
MEASURED = (
    "p50_us", "p99_us", "p999_us", "max_us", "cpu_us", "peak_mb", "descriptors", "files",
    "disk_bytes", "device_bytes", "device_read_bytes", "amplification", "calls_each",
)  # fmt: skip
_TYPES = dict.fromkeys(("topics", "partitions", "threads", "batch"), pa.int64()) | {
    "disk": pa.bool_()
}
SCHEMA = pa.schema(
    [
        *((name, _TYPES.get(name, pa.string())) for name in KEY),
        ("file_system", pa.string()),
        ("stored", pa.int64()),
        ("messages", pa.int64()),
        ("rounds", pa.int64()),
        *((f"rate_{name}", pa.float64()) for name in ("min", "median", "max")),
        ("seconds", pa.float64()),
        *((name, pa.float64()) for name in MEASURED),
        ("reason", pa.string()),
    ]
)


def compare(
    layouts: Iterable[Any],
    workloads: Iterable[Any],
    sizes: Iterable[Size | Mapping[str, Any]] = (Size(),),
    *,
    directory: Path | str | None = None,
    amount: Amount = "quick",
    payload: Path | str | None = None,
    plan: Plan | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> pa.Table:
    """Measure layouts beside each other; a row a cell, with a reason where there is no measure.

    `layouts`: names of `bench list`, `module:Class`, `file.py:Class`, or classes that another
    process can import. `workloads`: names, `module:NAME` of a `Work`, or such objects. `sizes`:
    `Size` objects or dicts of their fields. Answers are compared before anything is timed.
    Files are written below `directory`: by default shared memory where it has room, else, and if
    any cell needs it, a disk. `amount`: "full", "quick" or "tiny", how many messages and rounds.
    Bodies are cut from the file `payload`. `progress` gets a line before each workload at each
    size. Unavailable for a mistake of the caller. Not thread-safe: nothing else should run beside.
    """
    _several("layouts", layouts, str)
    _several("workloads", workloads, str)
    _several("sizes", sizes, (Size, Mapping))
    if amount not in PLANS:
        raise Unavailable(f"amount: {amount!r} is none of {', '.join(PLANS)}")
    chosen = tuple(_importable(layout) for layout in layouts)
    blocks = blocks_of(chosen, workloads, sizes)
    text = text_of(None if payload is None else Path(payload))
    rows: list[dict[str, Any]] = []
    if directory is None and any(block.needs_disk for block in blocks):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        directory = SCRATCH
    place = place_for(None if directory is None else Path(directory), "tiny")
    try:
        for block in blocks:
            _check_room(block.size, place)
        for number, block in enumerate(blocks):
            progress(f"[{number + 1}/{len(blocks)}] {block.label}")
            inside = place / str(number)
            inside.mkdir()
            run_block(block, amount, text, inside, rows.append, plan or PLANS[amount])
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return table(rows)


def _several(what: str, given: Any, one: type | tuple[type, ...]) -> None:
    """Refuse one where there should be a list: its letters or fields would be taken for several."""
    if isinstance(given, one) or not isinstance(given, Iterable):
        raise Unavailable(f"{what}: give a list, not {given!r} itself")


def blocks_of(
    layouts: Sequence[Any], workloads: Iterable[Any], sizes: Iterable[Size | Mapping[str, Any]]
) -> list[Block]:
    """Return a block for each workload at each size."""
    works = [work_of(one) for one in workloads]
    sizes = list(sizes)
    for what, found in (("layout", layouts), ("workload", works), ("size", sizes)):
        if not found:
            raise Unavailable(f"name at least one {what}")
    for layout in layouts:
        contender(layout)
    _distinct("layouts", [name_of(layout) for layout in layouts])
    _distinct("workloads", [work.name for work in works])
    chosen = [size_of(one) for one in sizes]
    for size in chosen:
        if 0 < size.messages < size.places:
            raise Unavailable(
                f"{size.messages:,} messages do not reach {size.places:,} partitions: take more"
            )
    return [Block(work, size, tuple(layouts)) for work in works for size in chosen]


def _check_room(size: Size, place: Path) -> None:
    """Refuse messages that do not fit where they are written."""
    body = size.body if isinstance(size.body, int) else MIX_MEDIAN
    largest = shutil.disk_usage(place).free // (_COPIES * body)
    if size.messages > largest:
        raise Unavailable(
            f"{size.messages:,} messages of {size.body} B: there is room for {largest:,} of them"
        )


def _distinct(what: str, names: Sequence[str]) -> None:
    """Refuse two of one name: their cells would be one."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Unavailable(f"two {what} are named {twice!r}: give one of them another name")


def work_of(which: Any) -> Work:
    """Return a workload by its name, or as `module:NAME`, or itself."""
    if isinstance(which, Work):
        return which
    if which in BY_NAME:
        return BY_NAME[which]
    if ":" not in str(which):
        raise Unavailable(f"{which!r} is no workload; there are {', '.join(BY_NAME)}")
    found = named(which)
    if not isinstance(found, Work):
        raise Unavailable(f"{which} is not a bench.workloads.works.Work")
    return found


def size_of(given: Size | Mapping[str, Any]) -> Size:
    """Return a size; a mapping has some of its fields."""
    if isinstance(given, Size):
        return given
    if not isinstance(given, Mapping):
        raise Unavailable(f"{given!r} is no size: give a Size, or a dict of its fields")
    unknown = sorted(set(given) - set(Size.__dataclass_fields__))
    if unknown:
        known = ", ".join(Size.__dataclass_fields__)
        raise Unavailable(f"a size has no {unknown[0]!r}; its fields are {known}")
    return Size(**given)


def _importable(layout: Any) -> Any:
    """Refuse a class that the process of a cell cannot import."""
    main = sys.modules["__main__"]
    if getattr(layout, "__module__", "") == "__main__" and not _is_file(main):
        raise Unavailable(
            f"{layout.__qualname__}: a layout is measured in a process of its own, which cannot "
            "import what was typed in, piped or run in a notebook; put the class into a file, "
            "and name it as 'file.py:Class'"
        )
    if isinstance(layout, type) and "<locals>" in layout.__qualname__:
        raise Unavailable(
            f"{layout.__qualname__}: a layout is measured in a process of its own, which imports "
            "it; define the class at the top of a module"
        )
    return layout


def _is_file(module: Any) -> bool:
    return Path(getattr(module, "__file__", None) or "").is_file()


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a row a cell of the rows of a run: medians of rounds, and the range of rates."""
    cells: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    reasons: dict[tuple[str, ...], Mapping[str, Any]] = {}
    calls: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row["kind"] == "calls" and "calls_each" in row:
            calls[_identity(row)] = row["calls_each"]
        if row["kind"] not in ("run", "left_out"):
            continue
        key = _identity(row)
        if row["kind"] == "run":
            cells.setdefault(key, []).append(row)
        else:
            reasons[key] = row
    found = [_cell(runs, reasons.get(key)) for key, runs in cells.items()] + [
        _missing(row) for key, row in reasons.items() if key not in cells
    ]
    for cell in found:
        cell["calls_each"] = calls.get(_identity(cell))
    return pa.Table.from_pylist(found, SCHEMA)


def _key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in KEY if name != "disk"} | {
        "body": str(row["body"]), "file_system": row["file_system"], "disk": row.get("disk", False)
    }  # fmt: skip


def _identity(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in _key(row).values())


def _missing(row: Mapping[str, Any]) -> dict[str, Any]:
    return _key(row) | {"rounds": 0, "reason": row["reason"]}


def _cell(runs: list[Mapping[str, Any]], stopped: Mapping[str, Any] | None) -> dict[str, Any]:
    derived = [run | _derived(run) for run in map(dict, runs)]
    rates = [run["rate"] for run in derived]
    found = _key(runs[0]) | {
        "stored": derived[0]["stored"],
        "messages": derived[0]["messages"],
        "rounds": len(runs),
        "rate_min": min(rates),
        "rate_median": median(rates),
        "rate_max": max(rates),
        "seconds": median(run["seconds"] for run in derived),
        "reason": None if stopped is None else stopped["reason"],
    }
    for name in MEASURED:
        values = [run[name] for run in derived if run.get(name) is not None]
        found[name] = median(values) if values else None
    return found


def _derived(run: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    if run.get("cpu_seconds"):
        found["cpu_us"] = run["cpu_seconds"] / run["messages"] * 1e6
    size = run["body"]
    if run.get("device_bytes") and isinstance(size, int):
        found["amplification"] = run["device_bytes"] / (run["messages"] * size)
    return found
