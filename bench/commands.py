"""The commands of `python -m bench`; the bars are in `run.py`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bench import run as bars
from bench.comparison import compare, size_of, table, work_of
from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import CONTENDERS, REAL, contender
from bench.measure import soak as soaking
from bench.measure.harness import file_system, machine
from bench.measure.laboratory import PLANS, Results, name_of, plan_with, run
from bench.workloads.payload import standard_library
from bench.workloads.sizes import MIX, payload, text_of
from bench.workloads.works import (
    BY_NAME,
    DEFAULT,
    MAIN,
    OWN_PLACES,
    QUICK,
    WORKS,
    Amount,
    Block,
    cells,
)

_HEAD = (
    f"{'min..max':>19}{'p50 us':>9}{'p99':>9}{'p99.9':>9}{'max':>10}"
    f"{'cpu us':>8}{'MB':>7}{'files':>8}{'syscalls':>9}"
)


#: The run that the README quotes.
_OURS = bars.RESULTS / "layouts.jsonl"
#: What `compare` writes, and what is no name for the results of a run.
_TABLES = (".csv", ".parquet")
_OTHER_FORMATS = (*_TABLES, ".arrow", ".feather", ".html", ".md")
_AXES = ("topics", "partitions", "body", "skew", "threads", "durability")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; without its name, or with an option first, the bars, as ever."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["bars"]:
        return bars.main(given[1:])
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        return bars.main(given)
    asked = parser().parse_args(given)
    with contextlib.suppress(ValueError):  # in another thread than the first
        signal.signal(signal.SIGTERM, _end)  # what was written goes, as after Ctrl-C
    try:
        code = int(asked.command(asked) or 0)
        sys.stdout.flush()
        return code
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # a reader that has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"bench: {place}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    found = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare storage layouts: throughput, latency, memory, files, recovery.",
        epilog="Without a command: the bars, this store beside its limits (`bars --help`).",
    )
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "bars", "the workloads with a bar each, as `make bench` runs them", _bars)
    one = _add(commands, "run", "the laboratory's table, or some of its cells", _run)
    _selection(one)
    one.add_argument("--quick", action="store_true", help="some cells, in three minutes")
    one.add_argument("--output", type=Path, metavar="FILE", help="default: bench/results/…jsonl")
    one.add_argument("--resume", type=Path, metavar="FILE", help="go on with an interrupted run")
    one.add_argument("--again", action="append", default=[], metavar="BLOCK",
                     help="measure a block of `list` again, as 'append 1 x 10', and put it where "
                          "the file of --resume has it; repeatable")  # fmt: skip
    one.add_argument("--cell-seconds", type=_positive, metavar="N",
                     help="how long all rounds of a cell may take; default 180")  # fmt: skip
    one.add_argument("--layout", action="append", default=[], metavar="MODULE:CLASS",
                     help="add a layout of your own to every block (or FILE.py:CLASS)")  # fmt: skip
    one.add_argument("--work", action="append", default=[], metavar="MODULE:NAME",
                     help="add a workload of your own at some sizes (or FILE.py:NAME)")  # fmt: skip
    two = _add(commands, "compare", "some layouts at some workloads, with sizes", _compare)
    two.add_argument("layouts", nargs="+", metavar="LAYOUT", help="names, or MODULE:CLASS")
    _selection(two)
    two.add_argument("--output", type=Path, metavar="FILE", help="the table as .csv or .parquet")
    two.add_argument("--disk", action="store_true", help="on a disk, whatever the durability")
    for name, kind, text in (
        ("topics", int, "how many topics"),
        ("partitions", int, "partitions of a topic"),
        ("body", str, f"bytes of a body, or {MIX!r}"),
        ("skew", str, "even or zipf"),
        ("threads", int, "threads that append"),
        ("durability", str, "memory, page_cache or fsync"),
        ("messages", int, "messages of a run, at most"),
    ):
        two.add_argument(f"--{name}", type=kind, action="append", help=f"{text}; repeatable")
    three = _add(commands, "report", "an HTML page and Markdown of a run", _report)
    three.add_argument("results", nargs="?", type=Path, metavar="FILE",
                       help="of `run`; default: your last one, else the recorded one; "
                            "with --summary the recorded one")  # fmt: skip
    three.add_argument("--summary", action="store_true",
                       help="print the README's table and write nothing")  # fmt: skip
    three.add_argument("--html", type=Path, metavar="FILE", help="default: beside the results")
    three.add_argument("--markdown", type=Path, metavar="FILE", help="default: beside the results")
    four = _add(commands, "advise", "which layout for so many partitions?", _advise)
    four.add_argument("--results", type=Path, metavar="FILE",
                      help="of `run`; default: the recorded run")  # fmt: skip
    for name, usual, text in (
        ("partitions", None, "of all topics"),
        ("topics", 0, "the partitions are spread over so many; default: ten each"),
        ("body", 1024, "bytes of a body"),
        ("readers", 1, "each reads everything"),
    ):
        four.add_argument(f"--{name}", type=int, default=usual, required=usual is None, help=text)
    four.add_argument("--durability", default="page_cache", choices=("page_cache", "fsync"))
    five = _add(commands, "soak", "how long single appends take, for minutes, on a disk", _soak)
    five.add_argument("--seconds", type=_seconds, default=300.0, help="of each run; default 300")
    five.add_argument("--shape", action="append", type=_shape, metavar="TOPICSxPARTITIONS",
                      help="repeatable; default: 1x10 and 1000x10")  # fmt: skip
    five.add_argument("--share", type=_share, default=0.5,
                      help="of the full rate, for the runs by a schedule; default 0.5")  # fmt: skip
    five.add_argument("--dir", type=Path, default=Path(), metavar="DIR",
                      help="where to write; default: here")  # fmt: skip
    five.add_argument("--output", type=Path, metavar="FILE", help="the results as JSON lines, too")
    _add(commands, "list", "layouts, workloads and the cells of a run", _list)
    return found


def _add(
    commands: Any, name: str, text: str, command: Callable[[Any], int | None]
) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    one.set_defaults(command=command)
    return one


def _selection(one: argparse.ArgumentParser) -> None:
    one.add_argument("--only", action="append", metavar="NAME",
                     help="a workload, or MODULE:NAME of your own; repeatable")  # fmt: skip
    one.add_argument("--dir", type=Path, metavar="DIR", help="where to write; default /dev/shm")
    one.add_argument("--rounds", type=_positive, metavar="N", help="measured runs of each cell")
    one.add_argument("--payload", type=Path, metavar="FILE", help="cut bodies from this file")
    one.add_argument("--calls", action=argparse.BooleanOptionalAction,
                     help="count system calls, with strace; run: where there is one")  # fmt: skip
    one.add_argument("--tiny", action="store_true", help="only show that it works")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _shape(text: str) -> tuple[int, int]:
    topics, _, partitions = text.partition("x")
    return _positive(topics), _positive(partitions)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return seconds


def _share(text: str) -> float:
    share = _seconds(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1: the whole rate")
    return share


def _bars(asked: argparse.Namespace) -> int:
    return bars.main([])


def _amount(asked: argparse.Namespace) -> Amount:
    if asked.tiny:
        return "tiny"
    return "quick" if getattr(asked, "quick", False) else "full"


def _chosen(asked: argparse.Namespace, blocks: tuple[Block, ...]) -> list[Block]:
    """Return the blocks of the workloads that were asked for, and those of the caller's own."""
    only = [work_of(name) for name in asked.only or ()]
    own = [work_of(name) for name in asked.work]
    own += [work for work in only if work.name not in BY_NAME]
    for work in own:
        if BY_NAME.get(work.name, work) is not work:
            raise Unavailable(f"there is a workload {work.name!r}: give yours another name")
    names = {work.name for work in (*only, *own)}
    kept = [one for one in blocks if not only or one.work.name in names]
    added = dict.fromkeys(work for work in own if work.name not in BY_NAME)
    return kept + [Block(work, size_of(size), MAIN) for work in added for size in OWN_PLACES]


def _again(asked: argparse.Namespace) -> list[Block]:
    """Return the blocks that are measured again, each with what the file has of it, too."""
    if asked.only or asked.work or asked.layout or not asked.resume:
        raise Unavailable("--again is for blocks of the table in the file of --resume, as they are")
    known = {block.label: block for block in (QUICK if asked.quick or asked.tiny else DEFAULT)}
    found = []
    for given in dict.fromkeys(asked.again):
        label = given.replace(" x ", " × ")
        if label not in known:
            raise Unavailable(f"--again {given}: no such block; `python -m bench list` has them")
        found.append(known[label])
    return found


def _with_recorded(block: Block, recorded: list[str]) -> Block:
    """Return a block with the contenders of the table, and with those that a file has of it."""
    known = {name_of(which) for which in block.contenders}
    more = [name for name in recorded if name not in known]
    if own := [name for name in more if name not in CONTENDERS]:
        raise Unavailable(f"{block.label!r} has {own[0]}, which is not of the table: its rows of "
                          "that block would be lost; begin a new file")  # fmt: skip
    return replace(block, contenders=(*block.contenders, *more))


def _counts(asked: argparse.Namespace, amount: Amount) -> bool:
    """Return whether system calls are counted: a full run does it where it can."""
    there = shutil.which("strace") is not None
    if asked.calls and not there:
        raise Unavailable("--calls: strace is not installed")
    if asked.calls is None:
        return there and amount == "full" and asked.command is _run
    return bool(asked.calls)


def _run(asked: argparse.Namespace) -> None:
    amount = _amount(asked)
    table_of = QUICK if asked.quick or asked.tiny else DEFAULT
    blocks = _again(asked) if asked.again else _chosen(asked, table_of)
    counts = _counts(asked, amount)
    for layout in asked.layout:
        contender(layout)  # a mistake is noticed now
        blocks = [Block(b.work, b.size, (*b.contenders, layout)) for b in blocks]
    text = text_of(asked.payload)
    head = machine(payload(text, 1024), "tiny" if amount == "tiny" else amount)
    head["kind"] = "laboratory"
    head["settings"] = settings(blocks)
    path = asked.resume or asked.output
    if path is not None and path.suffix in _OTHER_FORMATS:
        raise Unavailable(
            f"{path}: the results of a run are JSON Lines, name them .jsonl "
            "(`compare --output` writes tables)"
        )
    if asked.output and asked.output.exists() and asked.output.stat().st_size:
        raise Unavailable(f"{path} is there already: --resume goes on with it, or name another")
    path = path or bars.RESULTS / time.strftime("laboratory-%Y%m%dT%H%M%S.jsonl", time.gmtime())
    if asked.resume and asked.output:
        raise Unavailable("--resume goes on with its file: --output is for a new one")
    if asked.resume and not path.exists():
        raise Unavailable(f"--resume {path}: there is no such file")
    again = {block.label for block in blocks} if asked.again else set()
    results = Results(path, head, resume=asked.resume is not None, again=again)
    blocks = [_with_recorded(b, results.layouts(b.label)) if again else b for b in blocks]
    places: list[Path] = []
    scale = "tiny" if amount == "tiny" else amount
    began = time.monotonic()

    def place(block: Block) -> Path:
        if not places:
            places.append(bars.place_for(asked.dir, scale))
        if not block.needs_disk or file_system(places[0]) != "tmpfs":
            return places[0]
        if len(places) == 1:
            places.append(bars.place_for(bars.SCRATCH, scale))
        return places[1]

    def progress(block: Block, rows: list[dict[str, Any]], number: int, total: int) -> None:
        minutes = (time.monotonic() - began) / 60
        print(f"[{number}/{total}, {minutes:.1f} min] {block.work.question}: {block.label}")
        print("\n".join(lines(rows)) + "\n", flush=True)

    print(f"{cells(blocks)} cells in {len(blocks)} block{'s' * (len(blocks) > 1)}, {path}",
          flush=True)  # fmt: skip
    try:
        plan = plan_with(
            PLANS[amount], rounds=asked.rounds, counts_calls=counts, cell_seconds=asked.cell_seconds
        )
        run(blocks, amount, text, place, results, progress, plan)
    except KeyboardInterrupt:
        print(f"bench: interrupted; go on with --resume {path}", file=sys.stderr)
        raise
    else:
        print(f"python -m bench report {path}   # draws it")
    finally:
        for one in places:
            shutil.rmtree(one, ignore_errors=True)


def settings(blocks: list[Block]) -> dict[str, str]:
    """Return how each contender of some blocks is configured, by its name in the results."""
    names = {which for block in blocks for which in block.contenders}
    return {name_of(one): getattr(contender(one), "settings", "") for one in sorted(names)}


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Format the cells of one block."""
    cells = table(rows).to_pylist()
    opens = any(_opens(cell["work"]) for cell in cells)
    found = [f"  {'':24}{'ms' if opens else 'k/s':>10}{_HEAD}"]
    for cell in cells:
        if cell["rate_median"] is None:
            found.append(f"  {cell['layout']:24}{cell['reason']}")
            continue
        rates = [cell[f"rate_{name}"] / 1000 for name in ("median", "min", "max")]
        middle, *ends = [1 / rate for rate in rates] if opens else rates
        text = f"  {cell['layout']:24}{_number(middle):>10}"
        text += f"{'..'.join(map(_number, sorted(ends))):>19}"
        widths = (("p50_us", 9), ("p99_us", 9), ("p999_us", 9), ("max_us", 10), ("cpu_us", 8),
                  ("peak_mb", 7), ("files", 8), ("calls_each", 9))  # fmt: skip
        text += "".join(f"{_number(cell[name]):>{width}}" for name, width in widths)
        found.append(text + (f"  {cell['reason']}" if cell["reason"] else ""))
    found += [
        f"  the machine was not quiet: {', '.join(row['disturbed'])} took longer"
        for row in rows
        if row["kind"] == "block" and row["disturbed"]
    ]
    return found


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def _opens(work: str) -> bool:
    return work in BY_NAME and BY_NAME[work].opens


def _compare(asked: argparse.Namespace) -> None:
    axes = {name: getattr(asked, name) for name in (*_AXES, "messages")}
    given = {name: values for name, values in axes.items() if values}
    if "body" in given:
        given["body"] = [body if body == MIX else _whole(body) for body in given["body"]]
    sizes = [
        size_of(dict(zip(given, values, strict=True)))
        for values in itertools.product(*given.values())
    ]
    if asked.disk:
        sizes = [replace(size, disk=True) for size in sizes]
    works = asked.only or ["append", "batch", "read", "scan"]
    amount = _amount(asked)
    counts = _counts(asked, amount)
    if asked.output:
        if asked.output.suffix not in _TABLES:
            raise Unavailable(f"{asked.output}: name the table .csv or .parquet")
        asked.output.open("ab").close()  # a mistake is noticed now
    found = compare(
        asked.layouts, works, sizes, directory=asked.dir, amount=amount, payload=asked.payload,
        plan=plan_with(PLANS[amount], rounds=asked.rounds, counts_calls=counts),
        progress=lambda text: print(f"bench: {text}", file=sys.stderr),
    )  # fmt: skip
    rows = found.to_pylist()
    questions = {work.name: work.question for work in map(work_of, works)}
    for work in dict.fromkeys(row["work"] for row in rows):
        print(f"{work}: {questions[work]}")
        for row in (one for one in rows if one["work"] == work):
            label = size_of({name: _typed(name, row[name]) for name in (*_AXES, "disk")}).label
            print(f"  {row['layout']:24}{label:40}{_summary(row)}")
    if asked.output:
        _write_table(found, asked.output)


def _write_table(found: Any, path: Path) -> None:
    from pyarrow import csv, parquet

    (parquet.write_table if path.suffix == ".parquet" else csv.write_csv)(found, path)


def _typed(name: str, value: Any) -> Any:
    return int(value) if name == "body" and value != MIX else value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Unavailable(f"--body {text}: neither a number of bytes nor {MIX!r}") from None


def _summary(row: dict[str, Any]) -> str:
    if row["rate_median"] is None:
        return str(row["reason"])
    p99 = "" if row["p99_us"] is None else f", p99 {_number(row['p99_us'])} us"
    calls = "" if row["calls_each"] is None else f", {row['calls_each']:.2f} system calls each"
    rates = [row[f"rate_{name}"] for name in ("median", "min", "max")]
    unit = "messages/s"
    if _opens(row["work"]):
        rates, unit = [1000 / rate for rate in rates], "ms"
    middle, low, high = map(_number, (rates[0], *sorted(rates[1:])))
    between = "" if row["rounds"] == 1 else f" ({low} to {high})"
    return f"{middle:>12} {unit}{between}{p99}, {_number(row['peak_mb'])} MB{calls}"


def _soak(asked: argparse.Namespace) -> None:
    if not asked.dir.is_dir():
        raise Unavailable(f"{asked.dir}: no such directory")
    print(f"  single appends at page_cache, {asked.seconds:g} s each, on {file_system(asked.dir)}")
    print(soaking.HEAD, flush=True)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(asked.output.open("x")) if asked.output else None
        payload = standard_library()
        if file is not None:
            where = {"dir": file_system(asked.dir)}
            print(json.dumps(machine(payload, "full") | where), file=file, flush=True)

        def note(found: soaking.Soak) -> None:
            row = found.row()
            print(soaking.line(row), flush=True)
            if file is not None:
                print(json.dumps(row), file=file, flush=True)

        shapes = asked.shape or [(1, 10), (1000, 10)]
        soaking.soak(asked.dir, asked.seconds, shapes, asked.share, note, payload)


def _list(asked: argparse.Namespace) -> None:
    print("Layouts:")
    for name in CONTENDERS:
        made = contender(name)
        able = "in a JVM" if name in REAL else ", ".join(sorted(made.capabilities))
        print(f"  {name:22}{made.settings or made.name}\n{'':24}{able}")
    print("\nWorkloads:")
    for work in WORKS:
        print(f"  {work.name:12}{work.question} (needs {', '.join(sorted(work.way.needs))})")
    for name, blocks in (("run", DEFAULT), ("run --quick", QUICK)):
        print(f"\n{name}: {len(blocks)} blocks, {cells(blocks)} cells")
        for block in blocks:
            print(f"  {block.label:44}{', '.join(map(str, block.contenders))}")


def _last() -> Path | None:
    return max(bars.RESULTS.glob("laboratory-*.jsonl"), default=None)


def _recorded(given: Path | None) -> Path:
    """Return the results that were asked for: without a name the recorded run.

    A run of the user's may have few blocks, as a quick one: it answers when it is named.
    """
    if given is None and (last := _last()) is not None:
        print(f"bench: this is by the recorded run; your last one is {last}", file=sys.stderr)
    return given or _OURS


def _report(asked: argparse.Namespace) -> None:
    from bench.report import markdown, page, results
    from bench.report.model import Model
    from bench.report.model_page import sections

    last = None if asked.summary else asked.results or _last()
    path = last or _recorded(asked.results)
    report = results.load(path)
    if missing := results.absent(report):
        print(f"bench: {len(missing)} blocks of the table are not in {path}, or not with every "
              "contender; the report lists them, and run --resume measures whole ones",
              file=sys.stderr)  # fmt: skip
    if asked.summary:
        print(markdown.summary(report), end="")
        return
    model = Model(report.cells)
    pages = (
        (asked.html or path.with_suffix(".html"),
         page.page(report, model.curves, sections(model, report.cells, report.layouts))),
        (asked.markdown or path.with_suffix(".md"), markdown.markdown(report)),
    )  # fmt: skip
    for target, text in pages:
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"{target}: {error.strerror}") from error
        print(target)


def _advise(asked: argparse.Namespace) -> None:
    from bench.report import results
    from bench.report.advice import asked_for
    from bench.report.advice import lines as advice_lines
    from bench.report.model import Model

    question = asked_for(
        asked.partitions, asked.topics, asked.body, asked.durability, asked.readers
    )  # fmt: skip
    path = _recorded(asked.results)
    report = results.load(path)
    print(f"By {path.name}: " + results.about(report)[0])
    print(advice_lines(Model(report.cells), question, report.cells))
