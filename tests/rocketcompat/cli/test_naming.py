"""Names that options give: one that is missing is an error that lists what there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketcompat.cli.naming import check_group, check_index_file, check_name, check_queue
from rocketcompat.formats import CONSUME_QUEUE_DIRECTORY
from tubestore.cli.kit.errors import NotThere

QUEUES = [("a", 0), ("a", 3), ("b", 1)]
DIRECTORY: Any = SimpleNamespace(
    queue_names=lambda kind: QUEUES if kind == CONSUME_QUEUE_DIRECTORY else [("batches", 0)],
    index_paths=lambda: ["/s/index/20231114221320000"],
)


@pytest.mark.parametrize(
    ("topic", "queue"), [("a", None), ("a", 3), (None, 1), (None, None), ("batches", 0)]
)
def test_a_queue_that_is_there_may_be_named_in_part(topic: str | None, queue: int | None) -> None:
    check_queue(DIRECTORY, [*QUEUES, ("batches", 0)], topic, queue)


@pytest.mark.parametrize(
    ("topic", "queue", "words"),
    [
        ("c", None, "no topic 'c' in this store; there are: a, b, batches"),
        ("c", 0, "no topic 'c' in this store; there are: a, b, batches"),
        ("a", 1, "no queue 1 of topic 'a'; there are: 0, 3"),
        (None, 9, "no queue 9 of any topic; there are: a/0, a/3, b/1, batches/0"),
    ],
)
def test_a_queue_that_is_missing_is_named_beside_those_that_are_there(
    topic: str | None, queue: int | None, words: str
) -> None:
    with pytest.raises(NotThere) as caught:
        check_queue(DIRECTORY, [], topic, queue)
    assert str(caught.value) == words


def test_an_empty_listing_without_a_name_is_no_mistake() -> None:
    check_queue(DIRECTORY, [], None, None)


def test_a_topic_has_to_have_queues_in_the_directory() -> None:
    check_name(DIRECTORY, "a", 3)
    with pytest.raises(NotThere, match="no queue 4 of topic 'a'"):
        check_name(DIRECTORY, "a", 4)


def test_a_group_or_an_index_file_that_is_missing_is_named() -> None:
    rows = [{"group": "g"}, {"group": "h"}]
    check_group(rows, None)
    check_group(rows, "g")
    with pytest.raises(NotThere, match=r"no group 'x' in config/consumerOffset\.json.*g, h"):
        check_group(rows, "x")
    check_index_file(DIRECTORY, None)
    check_index_file(DIRECTORY, "20231114221320000")
    with pytest.raises(NotThere, match=r"no index file .0..*20231114221320000"):
        check_index_file(DIRECTORY, "0")
