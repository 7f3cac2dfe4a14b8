"""`rocketcompat spark demo`: the stores that the demos left, worked on by Spark."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

import tubestore
from tubestore.cli.kit.demo import Steps, fresh, timed
from tubestore.cli.kit.errors import UsageMistake


def run(out: Path, console: Console | None = None) -> bool:
    """Audit, add up and convert; returns whether everything was right."""
    root, store = out / "engine", out / "stack"
    if not root.exists() or not store.exists():
        raise UsageMistake(f"{out}: run `tubestore demo` and `rocketcompat demo` before")
    from rocketcompat.spark.jobs.to_shards import convert
    from tubestore.spark import session
    from tubestore.spark.jobs.audit import audit
    from tubestore.spark.jobs.stats import stats

    console = console or Console()
    steps = Steps(console)
    console.print("[bold]Spark: the same stores, split over tasks[/bold]")
    clock = timed()
    spark = session(quiet=True)
    steps.done("session", f"{spark.sparkContext.master}, Spark {spark.version}", clock())
    clock = timed()
    audited = audit(spark, str(root.resolve()))
    what = f"{audited.bad} findings, checksums compared"
    steps.done("audit", what, clock(), audited.rows)
    clock = timed()
    topics = stats(spark, str(root.resolve())).topics
    what = f"{len(topics)} topic{'' if len(topics) == 1 else 's'}, from the index alone"
    steps.done("statistics", what, clock(), sum(t["messages"] for t in topics))
    for topic in topics:
        console.print(
            f"    {topic['topic']}: {topic['messages']:,} messages of {topic['mean_bytes']} bytes "
            f"in {topic['partitions']:,} partitions, skew {topic['skew']}",
            highlight=False,
        )
    clock = timed()
    copy = fresh(out / "converted")
    done = convert(spark, str(store.resolve()), str(copy.resolve()))
    steps.done("convert", "the CommitLog to shards", clock(), done.rows)
    same = _bytes(copy) == _bytes(store / "tube")
    verdict = "the same bytes" if same else "NOT the same bytes"
    console.print(f"  {'compare':<16}{verdict} as the shards beside the log", highlight=False)
    spark.stop()
    return same and audited.bad == 0


def _bytes(root: Path) -> dict[str, bytes]:
    """Return each shard's data and index, its files one behind the other."""
    with tubestore.open(root, mode="r"):  # it is one, and whole
        pass
    found: dict[str, bytes] = {}
    for path in sorted([*root.glob("*/*.tube"), *root.glob("*/index/*.index")]):
        kind = str(path.parent.relative_to(root))
        found[kind] = found.get(kind, b"") + path.read_bytes()
    return found
