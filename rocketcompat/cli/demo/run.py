"""`rocketcompat demo`: the same lines through the full stack: log, queues, index and shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

import rocketcompat
import tubestore
from rocketcompat.check.whole import check
from rocketcompat.cli.demo.damage import damage_and_mend
from rocketcompat.messages import GetMessageStatus
from rocketcompat.options import LAYOUTS
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


def run(
    paths: Sequence[Path] = (),
    *,
    out: Path = Path("demo-out"),
    partitions: int = 1000,
    lines: int = DEFAULT_LINES,
    console: Console | None = None,
) -> bool:
    """Run the full stack's demo into `out`; returns whether everything that was read was right."""
    steps = begin(out, "rocketcompat: one log, and queues, index and shards built from it", console)
    console, root = steps.console, fresh(out / "stack")
    table, _ = load_lines(paths, lines)
    messages = _messages(table, partitions)
    good = _put_and_get(root, messages, steps)
    good &= _read_shards(root, table, steps)
    good &= _kill_and_recover(fresh(out / "stack-killed"), steps)
    findings = report_check(check, (root, out / "stack-killed"), steps)
    good &= damage_and_mend(out / "stack-killed", fresh(out / "stack-damaged"), steps)
    compare(out, table, console)
    steps.table("the full stack, this run")
    console.print(
        f"  look into it with\n    rocketcompat queues {root}\n"
        f"    rocketcompat query {root} --topic {TOPIC} --key {_key_of(table, 0)}",
        highlight=False,
        soft_wrap=True,
    )
    return good and not findings


def _key_of(table: pa.Table, row: int) -> str:
    return f"{table['key'][row].as_py()}:{table['number'][row].as_py()}"


def _messages(table: pa.Table, queues: int) -> pa.Table:
    """Return the lines as messages: a file's lines in one queue, kind as tag, file:line as key."""
    files = table["key"].combine_chunks().dictionary_encode()
    keys = pc.binary_join_element_wise(
        table["key"], pc.cast(table["number"], pa.string()), pa.scalar(":")
    )
    return pa.table(
        {
            "topic": pa.repeat(TOPIC, table.num_rows),
            "queue_id": pa.array((files.indices.to_numpy() % queues).astype(np.int32)),
            "body": table["body"],
            "tags": table["filter_item"],
            "keys": keys,
        }
    )


def _put_and_get(root: Path, messages: pa.Table, steps: Steps) -> bool:
    count = messages.num_rows
    with rocketcompat.open(root, mode="w", layouts=LAYOUTS) as store:
        clock = timed()
        last = None
        for batch in batches_of(messages):
            last = store.put_columns(batch)
        steps.done("put", "into the log, in columns", clock(), count)
        assert last is not None
        store.wait_dispatched(last["physical_offset"][-1].as_py(), timeout=300)
        steps.done("put, dispatched", "in queues, index and shards too", clock(), count)

        queue = int(np.bincount(messages["queue_id"].to_numpy()).argmax())  # the longest one
        clock = timed()
        bodies = _pull(store, queue)
        steps.done("one queue", f"queue {queue}, 32 a pull", clock(), len(bodies))
        clock = timed()
        tagged = _pull(store, queue, tags="def || class")
        steps.done("tags", "def || class of that queue", clock(), len(tagged))
        wanted = messages["keys"][:: max(1, count // 1000)].to_pylist()
        clock = timed()
        hits = [store.query_message(TOPIC, key) for key in wanted]
        steps.done("keys", "through the index, one by one", clock(), len(hits))
        closing = timed()
    queues = len(pc.unique(messages["queue_id"]))
    steps.done("close", f"{queues:,} queues on stable storage", closing())
    mine = pc.equal(messages["queue_id"], queue)
    expected = messages.filter(mine)["body"].to_pylist()
    kinds = pc.is_in(messages["tags"], pa.array(["def", "class"]))
    found = all(len(hit.messages) == 1 for hit in hits)
    return bool(
        bodies == expected and len(tagged) == pc.sum(pc.and_(mine, kinds)).as_py() and found
    )


def _pull(store: Any, queue: int, tags: str | None = None) -> list[bytes]:
    bodies: list[bytes] = []
    offset = 0
    while True:
        result = store.get_message(TOPIC, queue, offset, 32, tags)
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
            return bodies
        bodies += [message.body for message in result.messages]
        offset = result.next_begin_offset


def _read_shards(root: Path, table: pa.Table, steps: Steps) -> bool:
    with tubestore.open(root / "tube", mode="r") as store:
        topic = store.topic(TOPIC)
        clock = timed()
        found = topic.scan(columns=["received_time_ms", "body"], verify=True).read_all()
        steps.done("everything", "the shards as Arrow, checksums compared", clock(), found.num_rows)
        times = found["received_time_ms"]
        middle = (pc.min(times).as_py() + pc.max(times).as_py()) // 2
        clock = timed()
        late = topic.scan(columns=["body"], start=middle).read_all()
        steps.done("time range", "the second half of the time", clock(), late.num_rows)
    bodies = found["body"].combine_chunks()
    same = bodies.equals(table["body"].combine_chunks().cast(pa.large_binary()))
    return bool(same and late.num_rows == pc.sum(pc.greater_equal(times, middle)).as_py())


def _kill_and_recover(root: Path, steps: Steps) -> bool:
    acknowledged = report_kill("rocketcompat.cli.demo.child", root, steps)
    clock = timed()
    lost = 0
    with rocketcompat.open(root, mode="w", layouts=LAYOUTS) as store:
        for number, physical_offset, queue_id, queue_offset in acknowledged:
            body = f"message {number}".encode()
            unit = store.get_message(TOPIC, int(queue_id), int(queue_offset), 1)
            there = [(m.physical_offset, m.body) for m in unit.messages]
            lost += there != [(int(physical_offset), body)]
        keyed = [store.query_message(TOPIC, f"k{number}") for number, *_ in acknowledged]
        wrong = sum(len(hit.messages) != 1 for hit in keyed)
    with tubestore.open(root / "tube", mode="r") as shards:
        found = shards.topic(TOPIC).scan(columns=["msg_id"]).read_all()["msg_id"].to_pylist()
    missing = {int(words[1]) for words in acknowledged} - set(found)
    twice = len(found) - len(set(found))
    what = f"{len(found):,} there; lost {lost + len(missing) + wrong}, twice {twice}"
    steps.done("recover", what, clock())
    return not (lost or missing or twice or wrong)


def compare(out: Path, table: pa.Table, console: Console) -> None:
    """Print what each layout takes on disk, the engine's beside the full stack's."""
    payload = pc.sum(pc.binary_length(table["body"])).as_py()
    shown = Table(title="on disk", title_justify="left")
    for heading in ("layout", "files", "MB", "bytes a line"):
        shown.add_column(heading, justify="left" if heading == "layout" else "right")
    places = [("lines themselves", None)] + [
        (name, out / path)
        for name, path in (
            ("engine alone", "engine"),
            ("CommitLog", "stack/commitlog"),
            ("ConsumeQueues", "stack/consumequeue"),
            ("IndexFiles", "stack/index"),
            ("shards of the log", "stack/tube"),
        )
        if (out / path).exists()
    ]
    for name, path in places:
        files, size = (0, payload) if path is None else disk_bytes(path)
        shown.add_row(
            name, f"{files:,}" if path else "", f"{size / 1e6:.1f}", f"{size / table.num_rows:.0f}"
        )
    console.print(shown)
    figures = out / "figures.json"
    if figures.exists():
        engine = json.loads(figures.read_text())["engine"]
        seconds, messages = engine["append"]
        console.print(f"  engine alone: {messages / seconds:,.0f} messages/s appended")
