"""What RocketMQ's and TubeMQ's classes have written, read with the readers of this project.

The files have the same bytes, so what a driver appended can be compared as that of every other
contender is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rocketcompat
import tubestore
from bench.layouts.layout import Unavailable
from bench.workloads.answers import Answers
from bench.workloads.cases import Case
from tubestore.errors import TubeStoreError

#: Topics of the drivers: "bench0", "bench1" … of RocketMQ's, and the only one of TubeMQ's.
_TOPIC = "bench"


class _Queues:
    """Reads queues of a RocketMQ store as a layout does."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(
        self, topic: int, partition: int, position: Any, limit: int, *, lean: bool
    ) -> tuple[Any, int | None]:
        page = self._store.read_queue(f"{_TOPIC}{topic}", partition, position or 0, limit)
        return page.batch, page.next_offset if page.batch.num_rows else None

    def bodies(self, rows: Any) -> list[bytes]:
        return rows.column("body").to_pylist()  # type: ignore[no-any-return]


class _Shard:
    """Reads partitions of a TubeMQ store as a layout does."""

    def __init__(self, store: Any) -> None:
        self._topic = store.topic(_TOPIC)

    def read(
        self, topic: int, partition: int, position: Any, limit: int, *, lean: bool
    ) -> tuple[Any, Any]:
        start = "earliest" if position is None else position
        columns = ["offset", "body"]
        page = self._topic.read(partition, start, limit=limit, max_bytes=None, columns=columns)
        return page.table, page.next_offset if page.truncated else None

    def bodies(self, rows: Any) -> list[bytes]:
        return rows.column("body").to_pylist()  # type: ignore[no-any-return]


@contextmanager
def _opened(root: Path, *, rocket: bool) -> Iterator[_Queues | _Shard]:
    if rocket:
        with rocketcompat.open(root, mode="r") as store:
            yield _Queues(store)
    else:
        with tubestore.open(root, mode="r") as store:
            yield _Shard(store)


def compare(case: Case, root: Path, calls: int, batch: int, *, rocket: bool) -> None:
    """Compare eight partitions with what a driver was to append; Unavailable if they differ.

    The n-th call has the n-th `batch` bodies of the payload, again and again, and goes to topic
    after topic, then to the next partition. Threads share the calls: their order is not known.
    """
    bodies = case.payload.bodies
    answers = Answers(case.topics, case.partitions, ordered=case.threads == 1)
    turns = max(1, len(bodies) // batch)
    for topic, partition in answers.places:
        first = partition * case.topics + topic
        for call in range(first, calls, case.topics * case.partitions):
            start = call % turns * batch
            answers.add_each(
                (topic, partition, bodies[(start + n) % len(bodies)]) for n in range(batch)
            )
    try:
        with _opened(root, rocket=rocket) as reader:
            answers.compare(reader)
    except (TubeStoreError, KeyError) as error:
        raise Unavailable(f"what it has written cannot be read: {error}") from error
