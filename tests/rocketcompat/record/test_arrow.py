"""Records as Arrow batches, however alike they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocketcompat import Message
from tests.support.rocket.files.scanned import as_rows, assert_same, opened
from tests.support.rocket.inside import dispatcher_of, log_of


def test_batches_of_all_sizes_are_scanned_as_they_were_put(tmp_path: Path) -> None:
    random = np.random.default_rng(20_261_121)
    with opened(tmp_path) as store:
        bodies = [random.bytes(int(size)) for size in random.integers(0, 900, 400)]
        store.put_columns({"topic": ["T"] * 400, "body": bodies, "queue_id": np.arange(400) % 5})
        dispatcher_of(store).dispatch_pending()
        assert [row["body"] for row in as_rows(store.scan(verify=True))] == bodies
        page = store.read_queue("T", 3, 0, 20)
        assert page.batch["body"].to_pylist() == bodies[3:103:5]


@pytest.mark.parametrize("count", [1, 2, 40, 200])
@pytest.mark.parametrize("properties", ["", "a\x01b\x02"])
@pytest.mark.parametrize("size", [0, 5, 900])
def test_records_that_differ_in_nothing_but_bytes_are_read_as_each_alone(
    tmp_path: Path, count: int, properties: str, size: int
) -> None:
    """Above and below what is copied in one go, in a row of the log and with others between."""
    with opened(
        tmp_path, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000
    ) as store:
        for n in range(2 * count):
            body = bytes([n % 251]) * size
            store.put_message(Message("T", body, queue_id=n % 2, properties=properties, flag=n))
        dispatcher_of(store).dispatch_pending()
        found = [*as_rows(store.scan()), *as_rows([store.read_queue("T", 1).batch])]
        assert [row["flag"] for row in found] == [*range(2 * count), *range(1, 2 * count, 2)]
        for row in found:
            assert_same(store, row)


@pytest.mark.parametrize("place", [88 + 5, 88 + 5 + 1, 88 + 5 + 2, 88 + 5 + 3, 84])
def test_a_length_or_topic_that_alone_is_another_is_not_taken_for_that_of_its_neighbours(
    tmp_path: Path, place: int
) -> None:
    """Length of the topic, topic, length of the properties, length of the body: of one record."""
    with opened(tmp_path) as store:
        for n in range(5):
            store.put_message(Message("T", b"12345", flag=n))
        dispatcher_of(store).dispatch_pending()
        places = [row["physical_offset"] for row in as_rows(store.scan())]
        log_of(store).queue.files[0].write_at(places[3] + place, b"\x55")
        page = store.read_queue("T", 0)
        rows = as_rows([page.batch])
        if place == 88 + 5 + 1:
            assert [row["topic"] for row in as_rows(store.scan())] == ["T", "T", "T", "U", "T"]
            assert [row["flag"] for row in rows] == [0, 1, 2, 4]
            assert [p.reason for p in page.problems] == [
                "a unit of T/0 points to this record of U/0"
            ]
        else:
            assert [row["flag"] for row in rows] == [0, 1, 2, 4]
            assert [problem.position for problem in page.problems] == [places[3]]
