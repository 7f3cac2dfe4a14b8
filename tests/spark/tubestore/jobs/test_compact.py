"""Jobs without Spark: what they do with splits is what one process does with the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tubestore
from tests.spark.job_stores import COUNT, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import T0, scanned_rows
from tests.support.engine.mixed import TOPICS, bodies, mixed
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, InvalidOption
from tubestore.offline.check import check
from tubestore.spark.jobs import audit as audit_module
from tubestore.spark.jobs import compact as compact_module
from tubestore.spark.jobs import parquet as parquet_module
from tubestore.spark.jobs import stats as stats_module
from tubestore.spark.kit.publishing import staged_row
from tubestore.staging import placing
from tubestore.staging.writer import StagedWriter

pytestmark = pytest.mark.usefixtures("small_waves")


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[Path]:
    """Return a store whose writer has all its 240 messages in the journal."""
    with tubestore.open(tmp_path / "written", background=False) as store:
        for name in TOPICS:
            store.create_topic(name, partitions=2)
        for first in range(0, 240, 24):
            store.append_batch(mixed(first))
        yield tmp_path / "written"


def test_jobs_work_on_what_only_the_journal_has(journalled: Path, tmp_path: Path) -> None:
    spark: Any = None
    root = str(journalled)
    audited = audit_module.audit(spark, root)
    assert (audited.rows, audited.bad) == (240, 0)
    assert sum(row["messages"] for row in stats_module.stats(spark, root).topics) == 240
    parquet_module.export(spark, root, str(tmp_path / "out"))
    assert sum(pq.read_metadata(p).num_rows for p in (tmp_path / "out").rglob("*.parquet")) == 240
    for rows in (240, 480):  # the second time behind what the first one left in the copy
        copied = compact_module.compact(spark, root, str(tmp_path / "copy"), job_id=f"c{rows}")
        assert copied.rows == 240
        with tubestore.open(tmp_path / "copy", "r") as store:
            assert len(bodies(store)) == rows


# -- compact --------------------------------------------------------------------------------------
def test_a_copy_has_the_same_messages_byte_for_byte(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_splits(monkeypatch, compact_module)
    out = tmp_path / "copy"
    result = compact_module.compact(None, str(root), str(out), job_id="c")
    assert result.rows == COUNT + 300
    assert scanned_rows(out) == scanned_rows(root)
    assert list(check(out)) == []
    for shard in ("logs-0", "orders-0"):
        assert joined(out / shard, ".tube") == joined(root / shard, ".tube")
        assert joined(out / shard / "index", ".index") == joined(root / shard / "index", ".index")
    with tubestore.open(out, mode="r") as copy, tubestore.open(root, mode="r") as old:
        assert copy.topic("logs").options == old.topic("logs").options
    assert compact_module.compact(None, str(root), str(out), job_id="c").replayed


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The staged pairs that publishing rewrites, by their topics."""
    found: list[str] = []
    rewrite = placing._rewrite

    def noted(data: Any, index: Any, staged: Any, *rest: Any) -> None:
        found.append(staged.topic)
        rewrite(data, index, staged, *rest)

    monkeypatch.setattr(placing, "_rewrite", noted)
    return found


def as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies decode and encode every message, for no place: what records are to be like."""

    def work(self: Any, number: int, split: Any) -> Any:
        out = self.load.options
        with StagedWriter(out.path, self.job_id, f"{number}", options=out.store) as writer:
            for portion in split.portions:
                for columns, _ in compact_module.sound_columns(portion, self.options):
                    writer.write_columns(portion.shard.topic, columns)
            return staged_row(number, writer.finish())

    monkeypatch.setattr(compact_module.CompactJob, "work", work)


def shards_of(root: Path) -> dict[str, bytes]:
    """The bytes of the streams of all shards."""
    streams = [(shard, ".tube") for shard in sorted(root.glob("*-*"))]
    streams += [(shard / "index", ".index") for shard, _ in streams]
    return {str(path.relative_to(root)): joined(path, suffix) for path, suffix in streams}


def damage(root: Path) -> None:
    """Spoil one message of each topic, somewhere in the middle."""
    for topic in ("logs", "orders"):
        data = sorted((root / f"{topic}-0").glob("*.tube"))[0]
        raw = bytearray(data.read_bytes())
        raw[len(raw) // 2] ^= 1
        data.write_bytes(raw)


COPIES: dict[str, dict[str, str]] = {
    "everything": {},
    "since a time": {"startingTimestamp": str(T0 + 333)},
    "one topic": {"subscribe": "orders"},
    "what is sound": {"failOnCorrupt": "false"},
}


@pytest.mark.parametrize("into", ["a new store", "itself", "one that grows meanwhile"])
@pytest.mark.parametrize("what", COPIES)
def test_records_that_are_copied_whole_are_what_encoding_makes_of_them(
    what: str, into: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    rewritten: list[str],
) -> None:  # fmt: skip
    in_small_splits(monkeypatch, compact_module)
    if what == "what is sound":
        damage(root)
    outs = [tmp_path / "whole", tmp_path / "encoded"]
    if into != "a new store":
        for out in outs:
            shutil.copytree(root, out)
    options = COPIES[what] | {"job_id": "c"}
    with monkeypatch.context() as patched:
        if into == "one that grows meanwhile":
            _growing(patched, outs[0])
        result = compact_module.compact(None, str(root), str(outs[0]), **options)
    topics = set(rewritten)
    if into == "one that grows meanwhile":
        assert topics == {file["topic"] for row in result.done.rows for file in row["files"]}
        write_more(outs[1])
    elif what == "what is sound":
        # Those in front of the damage stand where they were expected.
        assert 0 < len(rewritten) < sum(len(row["files"]) for row in result.done.rows)
    else:
        assert topics == set()
    as_columns(monkeypatch)
    compact_module.compact(None, str(root), str(outs[1]), **options)
    assert shards_of(outs[0]) == shards_of(outs[1])
    damaged = what == "what is sound" and into != "a new store"
    assert len(list(check(outs[0]))) == (2 if damaged else 0)


def _growing(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    """Let somebody append to a store after a copy into it was planned."""
    planned_copy = compact_module.plan_compact

    def plan_and_append(*given: Any) -> Any:
        found = planned_copy(*given)
        write_more(out)
        return found

    monkeypatch.setattr(compact_module, "plan_compact", plan_and_append)


def write_more(root: Path) -> None:
    with tubestore.open(root, clock=ManualClock(), background=False) as store:
        for topic in ("logs", "orders"):
            table = {"body": [b"meanwhile"], "partition": [0], "received_time_ms": [T0]}
            store[topic].append_batch(table)


def joined(directory: Path, suffix: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob(f"*{suffix}")))


def test_a_copy_leaves_out_what_is_too_old(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    compact_module.compact(None, str(root), str(out), startingTimestamp=str(T0 + 250))
    kept = [r for r in scanned_rows(root) if r["received_time_ms"] >= T0 + 250]
    assert [r["msg_id"] for r in scanned_rows(out)] == [r["msg_id"] for r in kept]


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_a_copy_takes_no_offsets_of_partitions(name: str, root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="a copy has whole topics"):
        compact_module.compact(
            None, str(root), str(tmp_path / "out"), **{name: '{"logs": {"0": 28}}'}
        )
    assert not (tmp_path / "out").exists()


def test_a_part_of_a_split_without_wanted_messages_is_passed_by(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    compact_module.compact(None, str(root), str(out), startingTimestamp=str(T0 + COUNT - 3))
    assert len(scanned_rows(out)) == 3


def test_damage_ends_a_copy_or_is_left_out(root: Path, tmp_path: Path) -> None:
    data = sorted((root / "orders-0").glob("*.tube"))[0]
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    with pytest.raises(CorruptRecord, match="failOnCorrupt=false leaves it out"):
        compact_module.compact(None, str(root), str(tmp_path / "a"))
    result = compact_module.compact(None, str(root), str(tmp_path / "b"), failOnCorrupt="false")
    assert result.rows == COUNT + 300 - 1
