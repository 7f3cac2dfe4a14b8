"""The parts that tasks make of a log become queues of every kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.check.whole import check
from tests.spark.rocket_rebuilds import (
    GEOMETRY,
    SPLIT,
    expected,
    files_of,
    run,
)
from tests.spark.rocket_rebuilds import store as store
from tests.spark.rocket_rebuilds import template as template
from tests.spark.rocket_stores import CONFIG

pytestmark = pytest.mark.usefixtures("small_waves")


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A store whose queues have extensions, in files of 50 units."""
    config = CONFIG.changed(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=1024)
    with rocketcompat.open(tmp_path / "store", "w", config, background=False) as opened:
        for number in range(900):
            tags = f"t{number % 5}" if number % 3 else None
            body, queue = b"x" * (number % 90), number % 2
            opened.put_message(Message(f"topic{number % 3}", body, tags=tags, queue_id=queue))
    return tmp_path / "store"


@pytest.fixture
def batched(tmp_path: Path) -> Path:
    """A store with records that hold many messages, and plain ones beside and between them."""
    config = CONFIG.changed(
        compat="5.3.3", batch_topics=frozenset({"B"}), mapper_file_size_batch_consume_queue=9 * 46
    )
    with rocketcompat.open(tmp_path / "store", "w", config, background=False) as opened:
        for number in range(300):
            items = [BatchItem(b"%d" % n, tags=f"i{n}") for n in range(1 + number % 7)]
            opened.put_inner_batch(
                MessageBatch("B", items, queue_id=number % 3, properties={"KEYS": f"k{number}"})
            )
            opened.put_message(Message("B", b"plain", tags="p"))
            opened.put_message(Message("topic", b"beside", keys=[f"b{number}"]))
    return tmp_path / "store"


@pytest.mark.parametrize("split", [3000, SPLIT])
@pytest.mark.parametrize("kind", ["extended", "batched"])
def test_all_kinds_of_queues_are_byte_for_byte_what_dispatch_wrote(
    kind: str, split: int, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    before = files_of(root)
    directory = "consumequeue_ext" if kind == "extended" else "batchconsumequeue"
    assert len([name for name in before if name.startswith(f"{directory}/")]) > 10
    for name in ("consumequeue", "index", directory):
        shutil.rmtree(root / name)
    options = {**GEOMETRY, "mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue}
    if kind == "extended":
        options |= {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024}
    else:
        options |= {"batchTopics": "B", "mapperFileSizeBatchConsumeQueue": 9 * 46}
    run(root, options=options, max_split_bytes=split)
    assert files_of(root) == before
    assert list(check(root)) == []


@pytest.mark.parametrize("kind", ["extended", "batched"])
def test_damage_among_all_kinds_of_queues_is_passed_over_as_in_one_process(
    kind: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    log = sorted((root / "commitlog").iterdir())[0]
    raw = bytearray(log.read_bytes())
    raw[20_000:26_000] = bytes(6000)
    log.write_bytes(raw)
    here = expected(root, GEOMETRY)
    run(root, options=GEOMETRY, max_split_bytes=3000)
    assert files_of(root) == here
