"""The laboratory works: every workload runs at a tiny size and gives rows that make sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.layouts.capabilities import METHODS
from bench.layouts.layout import Layout, MappedSingleLog, SingleLog, TopicSharded
from bench.layouts.peers import PEERS, Unavailable
from bench.measure import harness
from bench.measure.harness import Run, Skipped, compete
from bench.report.table import from_file, lines, ratios, verdict
from bench.run import main
from bench.workloads.contestants import in_batches
from bench.workloads.payload import Payload, standard_library
from bench.workloads.table import WORKLOADS
from bench.workloads.workload import Workload
from rocketcompat.files.mmap_file import MmapFile
from tests.support.rocket.inside import log_of


@pytest.fixture(scope="module")
def payload() -> Payload:
    return standard_library(256 << 10)


#: Workloads of many processes; the gate has others of the kind.
SLOW = {"create-many", "open-many-killed", "open-clean", "rocket-open-kill"}


@pytest.mark.gate
@pytest.mark.parametrize(
    "workload",
    [pytest.param(w, marks=[pytest.mark.slow] * (w.name in SLOW), id=w.name) for w in WORKLOADS],
)
def test_workload_gives_a_sane_row_for_each_contestant(
    workload: Workload, payload: Payload, tmp_path: Path
) -> None:
    noted: list[Run | Skipped] = []
    compete(workload, "tiny", payload, tmp_path, noted.append)

    runs = [n for n in noted if isinstance(n, Run)]
    assert {n.who for n in noted} == {c.name for c in workload.contestants}
    assert {r.who for r in runs} >= {
        c.name for c in workload.contestants if c.role in ("ours", "limit")
    }
    for run in runs:
        assert run.messages > 0
        assert run.calls > 0
        assert run.seconds > 0
        assert json.loads(run.as_json())["who"] == run.who
    assert not list(tmp_path.rglob("*.tube")), "a workload left its files"
    text = "\n".join(lines(workload, runs, []))
    assert all(run.who in text for run in runs)


@pytest.mark.gate
@pytest.mark.parametrize("make", [TopicSharded, SingleLog, *PEERS], ids=lambda m: m.name)
def test_layout_gives_back_what_it_took(make: type, payload: Payload, tmp_path: Path) -> None:
    expected: dict[tuple[int, int], int] = {}
    try:
        with_layout = make(tmp_path, topics=3, partitions=4, durability="page_cache")
    except Unavailable as error:
        pytest.skip(str(error))
    assert isinstance(with_layout, Layout)
    for table in payload.batches(50, topics=3, partitions=4)[:2]:
        with_layout.append_batch(table)
        for row in table.select(["topic", "partition"]).to_pylist():
            place = row["topic"], row["partition"]
            expected[place] = expected.get(place, 0) + 1
    with_layout.append(2, 3, payload.bodies[0])
    expected[2, 3] = expected.get((2, 3), 0) + 1
    with_layout.flush()

    for (topic, partition), count in expected.items():
        found, position = 0, None
        while True:
            rows, position = with_layout.read(topic, partition, position, 7, lean=True)
            found += len(rows)
            if position is None:
                break
        assert found == count, (topic, partition)
    with_layout.close()


@pytest.mark.gate
def test_both_ways_of_writing_the_log_are_measured_side_by_side(
    payload: Payload, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WR-05: a log that is written by calls, and one that is written through maps."""
    for make, through_maps in ((SingleLog, False), (MappedSingleLog, True)):
        layout = make(tmp_path / make.name, topics=1, partitions=1, durability="page_cache")
        layout.append(0, 0, b"x")
        assert isinstance(log_of(layout.store).queue.last, MmapFile) is through_maps
        layout.close()
    workload = next(w for w in WORKLOADS if w.name == "append-one-page-cache")
    noted: list[Run | Skipped] = []
    both = workload.with_layouts([SingleLog, MappedSingleLog])
    compete(both, "tiny", payload, tmp_path / "place", noted.append)
    rates = {n.who: n.messages / n.seconds for n in noted if isinstance(n, Run)}
    assert rates.keys() >= {"rocketcompat", "rocketcompat, mapped"}


def test_a_layout_that_cannot_take_part_is_named_with_its_reason(
    payload: Payload, tmp_path: Path
) -> None:
    class Lookup(Empty):
        name = "lookup"
        capabilities = frozenset({"append"})

    for name, reason in (
        ("filter", "it is done by calls that only one store has"),
        ("append-batch", "it does not declare batch, read"),
        ("fsync-1", "it does not declare fsync, read"),
    ):
        (found,) = [w for w in WORKLOADS if w.name == name]
        noted: list[Run | Skipped] = []
        alone = replace(found, contestants=()).with_layouts([Lookup])
        compete(alone, "tiny", payload, tmp_path, noted.append)
        assert noted == [Skipped(name, "lookup", reason)]


def test_every_workload_of_layouts_has_a_way_for_those_of_the_caller(payload: Payload) -> None:
    """The way is declared: it does not depend on a workload's name."""
    mixed = {w.name for w in WORKLOADS if w.way is in_batches}
    assert mixed >= {"append-batch", "append-mixed-1k", "put-columns", "put-mixed-1k"}
    for workload in WORKLOADS:
        (added,) = workload.with_layouts([Empty]).contestants[len(workload.contestants) :] or [None]
        assert (added is None) == (workload.way is None), workload.name
        assert added is None or added.role == "user"


def test_a_layout_of_the_caller_takes_part_at_every_scale() -> None:
    (found,) = [w for w in WORKLOADS if w.name == "append-batch"]
    own = found.with_layouts([Empty]).contestants[-1]
    assert all(harness._takes_part(own, plan) for plan in harness.PLANS.values())


@pytest.mark.gate
def test_bodies_are_the_same_text_every_time(payload: Payload) -> None:
    assert payload.digest == standard_library(256 << 10).digest
    assert {len(b) for b in payload.bodies} == {payload.body_size}


def test_ratio_compares_runs_of_the_same_round() -> None:
    def run(who: str, number: int, seconds: float) -> Run:
        return Run("w", who, "ours", number, 100, 1, seconds, 0.0, "tmpfs", 0)

    ours = [run("a", 0, 1.0), run("a", 1, 4.0), run("a", 2, 1.0)]
    assert ratios(ours, [run("b", 0, 2.0), run("b", 1, 4.0)]) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [([0.9, 1.1], "reached"), ([0.5, 0.7], "MISSED"), ([0.7, 0.9, 1.0], "unclear")],
)
def test_bar_is_judged_by_all_rounds(found: list[float], expected: str) -> None:
    assert verdict(found, 0.8) == expected


@pytest.mark.gate
def test_command_writes_lines_that_can_be_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.jsonl"
    place = tmp_path / "place"
    place.mkdir()
    arguments = ["--tiny", "--only", "scan-crc", "--dir", str(place), "--output", str(output)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out

    assert str(tmp_path) not in output.read_text()
    assert list(place.iterdir()) == []
    assert "\n".join(from_file(output)).split() == printed.split()
    assert main(["--only", "no-such"]) == 2


@pytest.mark.gate
def test_one_that_is_missing_is_skipped_with_its_reason(payload: Payload, tmp_path: Path) -> None:
    workload = next(w for w in WORKLOADS if w.name == "append-one-memory")
    noted: list[Run | Skipped] = []
    compete(workload, "tiny", payload, tmp_path, noted.append)
    skipped = [n for n in noted if isinstance(n, Skipped)]
    assert any(s.who.startswith("TubeMQ") and s.reason for s in skipped)


@pytest.mark.gate
def test_profile_shows_our_functions(payload: Payload, tmp_path: Path) -> None:
    from bench.measure.profiling import profile

    workload = next(w for w in WORKLOADS if w.name == "append-batch")
    text = profile(workload, "tiny", payload, tmp_path)
    assert "append_batch" in text
    assert harness.PLANS["tiny"].rounds == 1


class Empty:
    """A layout that takes everything and keeps nothing."""

    name = "empty"
    capabilities = frozenset(METHODS) - {"by_key", "by_time", "filter", "transfer", "retain"}

    def __init__(self, root: Path, **_: object) -> None:
        pass

    def append(self, topic: int, partition: int, body: bytes) -> None:
        pass

    def append_batch(self, batch: object) -> None:
        pass

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: object, limit: int, *, lean: bool
    ) -> tuple[list[bytes], None]:
        return [b""] * limit, None

    def bodies(self, rows: list[bytes]) -> list[bytes]:
        return rows

    def scan(self, *, verify: bool) -> list[list[bytes]]:
        return [[b""] * 1000]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "name", ["append-one-page-cache", "append-batch", "fsync-1", "read-p100", "scan"]
)
def test_a_layout_that_gives_back_other_messages_than_it_took_is_not_measured(
    name: str, payload: Payload, tmp_path: Path
) -> None:
    (found,) = [w for w in WORKLOADS if w.name == name]
    noted: list[Run | Skipped] = []
    alone = found.with_layouts([Empty]).contestants[-1:]
    compete(replace(found, contestants=alone), "tiny", payload, tmp_path, noted.append)
    (skipped,) = noted
    assert isinstance(skipped, Skipped)
    assert "gives back other messages than it took" in skipped.reason
