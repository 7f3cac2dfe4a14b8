"""The laboratory's table: its size, its axes, and sizes that users give."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import CONTENDERS, REAL, contender
from bench.measure.worker import lacking
from bench.workloads.answers import Answers
from bench.workloads.payload import Payload, zipf
from bench.workloads.sizes import Size, payload, text_of
from bench.workloads.works import DEFAULT, MOST_CELLS, PLACES, QUICK, WORKS, Block, Work, cells

TEXT = bytes(range(256)) * 4096


def test_the_default_list_has_at_most_two_hundred_cells_and_every_workload() -> None:
    assert cells(DEFAULT) <= MOST_CELLS
    assert {block.work for block in DEFAULT} == set(WORKS)
    assert {name for block in DEFAULT for name in block.contenders} == set(CONTENDERS)
    assert cells(QUICK) <= 50
    assert not {name for block in QUICK for name in block.contenders} & REAL


def test_no_two_blocks_of_a_list_have_one_name() -> None:
    """The results of a run know a block by its name: the second one would never be measured."""
    for blocks in (DEFAULT, QUICK):
        assert len({block.label for block in blocks}) == len(blocks)


def test_the_default_list_has_the_axis_of_partitions_for_each_main_layout() -> None:
    places = Counter(
        (block.size.topics, block.size.partitions)
        for block in DEFAULT
        if block.work.name == "append" and {"tubestore", "kafka-format"} <= {*block.contenders}
    )
    assert set(PLACES) <= set(places)


def test_batches_and_reads_have_every_place_and_reads_of_everything_most_of_them() -> None:
    places = {
        work: {
            (block.size.topics, block.size.partitions)
            for block in DEFAULT
            if block.work.name == work and block.size == Size(*place_of(block))
        }
        for work in ("batch", "read", "scan")
    }
    assert places["batch"] == places["read"] == set(PLACES)
    assert places["scan"] == {(1, 1), (100, 10), (1000, 10), (10_000, 1), (100, 1000)}


def place_of(block: Block) -> tuple[int, int]:
    return block.size.topics, block.size.partitions


def test_a_row_on_a_disk_stands_beside_the_same_with_a_sync() -> None:
    labels = {block.label: block for block in DEFAULT}
    synced, not_synced = labels["append 1 × 10, fsync"], labels["append 1 × 10, on a disk"]
    assert set(not_synced.contenders) <= set(synced.contenders)
    assert synced.needs_disk
    assert not_synced.needs_disk
    assert not_synced.size.durability == "page_cache"
    assert not labels["append 1 × 10"].needs_disk


def test_files_of_a_partition_are_compared_with_shared_ones_at_many_topics_and_partitions() -> None:
    """TUB-02; TUB-04: 1,000 topics of one partition, where both have a file for each."""
    for work in ("append", "batch", "read"):
        found = {
            place_of(block)
            for block in DEFAULT
            if block.work.name == work and {"tubestore", "kafka-format"} <= {*block.contenders}
        }
        assert found >= {(1, 1), (1, 10), (100, 10), (1000, 1), (1000, 10), (10_000, 1)}


def test_writes_in_sequence_are_compared_with_the_same_at_random_places() -> None:
    """WR-04: the bodies of a block have one size, and its contenders take turns."""
    (block,) = [one for one in DEFAULT if {"raw-file", "random-writes"} <= {*one.contenders}]
    assert block.work.name == "append"
    assert isinstance(block.size.body, int)


def test_files_maps_and_sockets_are_compared_by_four_sizes_of_blocks() -> None:
    """MEM-02."""
    for work in ("append", "transfer"):
        sizes = {
            block.size.body
            for block in DEFAULT
            if block.work.name == work and {"raw-file", "raw-map"} <= {*block.contenders}
        }
        assert sizes == {1024, 4096, 16_384, 65_536}


def test_no_label_stands_for_two_blocks_of_the_same_contenders() -> None:
    labels = Counter((block.label, name) for block in DEFAULT for name in block.contenders)
    assert {label for label, count in labels.items() if count > 1} == set()


def test_every_cell_of_the_lists_can_be_done_or_has_its_reason() -> None:
    reasons = {
        (block.label, name): reason
        for block in (*DEFAULT, *QUICK)
        for name in block.contenders
        if (reason := lacking(contender(name), block.work, block.size))
    }
    assert reasons == {
        ("append 10,000 × 1", "tubemq"): "10,000 stores need 33 GB of buffers",
    }


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_workload_reaches_the_process_of_a_cell(work: Work) -> None:
    assert pickle.loads(pickle.dumps(work)).name == work.name


def test_bodies_are_of_the_size_that_was_asked_for() -> None:
    assert {len(body) for body in payload(TEXT, 100).bodies} == {100}
    assert {len(body) for body in payload(TEXT[:10], 64).bodies} == {64}
    mixed = payload(TEXT, "mix")
    sizes = [len(body) for body in mixed.bodies]
    assert b"".join(mixed.bodies) == TEXT[: sum(sizes)]
    assert len(set(sizes)) > 100
    assert np.median(sizes) == pytest.approx(512, rel=0.2)
    assert mixed.body_size == pytest.approx(np.mean(sizes), rel=0.2)


def test_a_skewed_case_draws_the_same_places_for_rows_and_answers(tmp_path: Path) -> None:
    case = Size(topics=4, partitions=5, skew="zipf", messages=3000).case(tmp_path, TEXT)
    counts = Counter((topic, partition) for topic, partition, _ in case.rows(3000))
    assert counts[0, 0] > counts[0, 1] > counts[3, 4] > 0
    assert list(case.rows(3000)) == list(case.rows(3000))
    table = case.tables()[0]
    places = Counter(
        zip(*(table.column(n).to_pylist() for n in ("topic", "partition")), strict=True)
    )
    assert places.most_common(1)[0][0] == (0, 0)
    assert isinstance(case.answers(), Answers)


def test_zipf_gives_the_second_place_half_of_the_first() -> None:
    drawn = np.bincount(zipf(100, 100_000, np.random.default_rng(1)), minlength=100)
    assert drawn[1] / drawn[0] == pytest.approx(0.5, rel=0.05)
    assert drawn[9] / drawn[0] == pytest.approx(0.1, rel=0.1)


def test_a_payload_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        text_of(tmp_path / "nothing")
    (tmp_path / "empty").touch()
    with pytest.raises(Unavailable, match="the file is empty"):
        text_of(tmp_path / "empty")
    (tmp_path / "own").write_bytes(b"my text")
    assert Payload(text_of(tmp_path / "own"), 2).bodies == [b"my", b" t", b"ex"]
