"""A stream's position: complete in itself, small for many shards, and of these topics only."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tubestore.errors import NotAStore
from tubestore.spark.lag import position_of
from tubestore.spark.positions import Position, TopicIds

T0 = 1_700_000_000_000


def test_the_position_of_many_shards_is_packed_and_complete_in_itself() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    shards = {f"orders-{n:05d}-{n % 3}": 28 * rng.randrange(20_000_000) for n in range(10_000)}
    for kept in (shards, {**shards, "odd-0": 5}, {f"ä{n}-0": n << 40 for n in range(257)}):
        position = Position("uuid", kept, {"odd-0": {1: 33}})
        text = json.dumps(position.as_json())
        assert Position.of_json(json.loads(text), "/s") == position, f"seed {seed}"
        assert json.dumps(Position.of_json(json.loads(text), "/s").as_json()) == text
    assert len(json.dumps(Position("uuid", shards).as_json())) < 60_000
    assert position_of({"sources": [{"endOffset": text}]}, "/s") == position
    plain = Position("uuid", {f"t{n}-0": n for n in range(256)})
    assert plain.as_json()["shards"] == plain.shards


@pytest.mark.parametrize("text", ["", "!", "00000", "Oni"])
def test_a_packed_position_that_is_damaged_is_no_position(text: str) -> None:
    packed = {"count": 300, "unit": 28, "text": text}
    with pytest.raises(NotAStore, match="no position of a stream"):
        Position.of_json({"v": 2, "store": "u", "packed": packed}, "/s")


@pytest.mark.parametrize("found", [{}, {"v": 2, "store": None, "shards": {}}, {"v": 1, "store": 1}])
def test_a_checkpoint_of_something_else_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(NotAStore, match="no position of a stream over a store"):
        Position.of_json(found, "/s")


def test_a_position_knows_topics_that_were_made_after_it() -> None:
    ids = {"logs": T0 + 5, "orders": T0 + 7, "theirs": 0}
    position = Position(
        "u", {"logs-0": 28}, {}, TopicIds.of(ids, ["logs", "orders", "theirs", "x"])
    )
    for one in (position, Position.of_json(json.loads(json.dumps(position.as_json())), "/s")):
        assert not one.is_of_another("logs", T0 + 5)
        assert one.is_of_another("logs", T0 + 8)
        assert not one.is_of_another("logs", 0), "a topic without an id may be any"
        assert not one.is_of_another("theirs", T0 + 9), "a topic that got an id is the same"
        assert not one.is_of_another("x", T0 + 9), "nor is one of a broker, without settings"


def test_a_position_without_ids_takes_each_topic_as_its_own() -> None:
    assert TopicIds.of({"theirs": 0}, ["theirs"]) is None
    old = Position.of_json({"v": 1, "store": "u", "shards": {"logs-0": 28}}, "/s")
    assert old.topics is None
    assert not old.is_of_another("logs", T0)
    assert "topics" not in old.as_json()


def test_ids_of_many_topics_take_little_room() -> None:
    rng = random.Random(15)
    shards = {f"orders-{n:05d}-0": 28 * rng.randrange(20_000_000) for n in range(10_000)}
    ids = {f"orders-{n:05d}": T0 + rng.randrange(10**9) for n in range(10_000)}
    plain = len(json.dumps(Position("u", shards).as_json()))
    known = Position("u", shards, {}, TopicIds.of(ids, ids))
    assert len(json.dumps(known.as_json())) < min(60_000, plain + 64)
    half = Position("u", shards, {}, TopicIds.of({"orders-00000": T0}, ids))
    assert half.topics is not None
    assert len(half.topics.without) == 9_999
    text = json.dumps(half.as_json())
    assert len(text) < 60_000
    assert Position.of_json(json.loads(text), "/s") == half


@pytest.mark.parametrize("topics", [5, {}, {"last": None}, {"last": 1, "without": {"text": "!"}}])
def test_damaged_ids_are_no_position(topics: Any) -> None:
    with pytest.raises(NotAStore, match="no position of a stream"):
        Position.of_json({"v": 1, "store": "u", "shards": {}, "topics": topics}, "/s")
