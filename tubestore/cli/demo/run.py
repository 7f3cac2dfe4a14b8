"""`tubestore demo`: the main job on real lines, in some seconds, and a store left to look into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

import tubestore
from tubestore.cli.kit.demo import (
    DEFAULT_LINES,
    TOPIC,
    Steps,
    batches_of,
    begin,
    disk_bytes,
    fresh,
    load_lines,
    report_check,
    report_kill,
    timed,
)
from tubestore.offline.check import check


def run(
    paths: Sequence[Path] = (),
    *,
    out: Path = Path("demo-out"),
    partitions: int = 1000,
    lines: int = DEFAULT_LINES,
    console: Console | None = None,
) -> bool:
    """Run the engine's demo into `out`; returns whether everything that was read was right."""
    steps = begin(out, "tubestore: many partitions, one pair of files", console)
    console, root = steps.console, fresh(out / "engine")
    clock = timed()
    table, files = load_lines(paths, lines)
    console.print(f"  {table.num_rows:,} lines of {files:,} files loaded in {clock():.1f} s")
    good = _write_and_read(root, table, partitions, steps)
    good &= _kill_and_recover(fresh(out / "engine-killed"), steps)
    findings = report_check(check, (root, out / "engine-killed"), steps)
    count, size = disk_bytes(root)
    payload = pc.sum(pc.binary_length(table.column("body"))).as_py()
    console.print(
        f"  on disk: {count} files, {size / 1e6:.1f} MB for {payload / 1e6:.1f} MB of lines; "
        f"look into it with\n    tubestore stat {root}\n"
        f"    tubestore read {root} {TOPIC} --limit 5",
        highlight=False,
        soft_wrap=True,
    )
    figures = {name: [seconds, messages] for name, _, seconds, messages in steps.rows}
    (out / "figures.json").write_text(json.dumps({"engine": figures, "payload": payload}))
    return good and not findings


def _write_and_read(root: Path, table: pa.Table, partitions: int, steps: Steps) -> bool:
    count = table.num_rows
    with tubestore.open(root) as store:
        topic = store.create_topic(TOPIC, partitions=partitions)
        clock = timed()
        for batch in batches_of(table.drop_columns(["number"])):
            topic.append_batch(batch)
        what = f"{count:,} messages, {partitions:,} partitions"
        steps.done("append", what, clock(), count)
        clock = timed()
        topic.sync()
        steps.done("sync", "on stable storage", clock())

        rows = topic.partitions()
        busiest = int(pc.index(rows["count"], pc.max(rows["count"])).as_py())
        partition = rows["partition"][busiest].as_py()
        clock = timed()
        page = topic.read(partition, limit=1_000_000, max_bytes=None)
        steps.done("one partition", f"partition {partition} of {partitions:,}", clock(), len(page))

        clock = timed()
        with topic.scan(filter_items=["class"], columns=["body"]) as reader:
            classes = reader.read_all()
        expected = pc.sum(pc.equal(table["filter_item"], "class")).as_py()
        what = f"{classes.num_rows:,} lines of kind 'class'"
        steps.done("filter", what, clock(), classes.num_rows)

        times = pa.table({"t": topic.scan(columns=["received_time_ms"]).read_all()[0]})
        middle = (pc.min(times["t"]).as_py() + pc.max(times["t"]).as_py()) // 2
        clock = timed()
        late = topic.scan(start=middle, columns=["offset", "body"]).read_all()
        steps.done("time range", "the second half of the time", clock(), late.num_rows)

        clock = timed()
        everything = topic.scan(columns=["partition", "offset", "body"], verify=True).read_all()
        steps.done("everything", "checksums compared, as Arrow", clock(), everything.num_rows)
    same = (
        everything["body"]
        .combine_chunks()
        .equals(table["body"].combine_chunks().cast(pa.large_binary()))
    )
    in_range = pc.sum(pc.greater_equal(times["t"], middle)).as_py()
    return bool(same and classes.num_rows == expected and late.num_rows == in_range)


def _kill_and_recover(root: Path, steps: Steps) -> bool:
    acknowledged = report_kill("tubestore.cli.demo.child", root, steps)
    clock = timed()
    with tubestore.open(root) as store:
        topic = store.topic(TOPIC)
        found = topic.scan(columns=["partition", "offset", "body"]).read_all()
        places = list(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True))
        bodies = dict(zip(places, found[2].to_pylist(), strict=True))
        lost = sum(
            bodies.get((int(partition), int(offset))) != f"message {number}".encode()
            for number, partition, offset in acknowledged
        )
        twice = found.num_rows - len(set(bodies.values()))
        topic.append(b"and on")
    steps.done("recover", f"{found.num_rows:,} there; lost {lost}, twice {twice}", clock())
    return bool(lost == 0 and twice == 0)
