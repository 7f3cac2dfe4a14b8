"""One shard read at many places at once: each message of each partition once, in order."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

import tubestore
from tests.proof.explorer.explore import seed_of_run
from tubestore.groups.feed import ShardFeed, TakenRows
from tubestore.reading.sources import EVERYTHING, item_filter
from tubestore.reading.view import ShardView
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

Store = tubestore.MessageStoreManager
SMALL: dict[str, Any] = {"segment_size_bytes": 700, "index_segment_size_bytes": 28 * 9}


@pytest.fixture
def topic(memory_vfs: MemoryVfs) -> Any:
    with tubestore.open("/s", vfs=memory_vfs, background=False, **SMALL) as store:
        yield store.create_topic("t", partitions=6)


def view_of(topic: tubestore.Topic) -> ShardView:
    return shards_of(topic).view_of(0)


def offsets(taken: TakenRows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for rows in taken.rows:
        for number, offset in zip(
            rows.entries["partition_id"].tolist(), rows.offsets.tolist(), strict=True
        ):
            found[number].append(offset)
    return dict(found)


def read_all(feed: ShardFeed, topic: tubestore.Topic, limit: int = 100) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    while True:
        taken = feed.read(view_of(topic), limit, 1 << 20)
        for number, some in offsets(taken).items():
            found[number] += some
        if not taken.more:
            return dict(found)


def test_only_the_given_partitions_are_read_from_their_positions_on(topic: tubestore.Topic) -> None:
    acks = [topic.append(b"x", partition=n % 3).offset for n in range(9)]
    feed = ShardFeed("t", 0)
    feed.add(0, 0)
    feed.add(2, acks[5])
    assert read_all(feed, topic) == {0: acks[0::3], 2: [acks[5], acks[8]]}
    assert feed.positions() == {0: view_of(topic).index_end, 2: view_of(topic).index_end}


def test_a_partition_that_was_idle_costs_no_entry_and_reads_on(topic: tubestore.Topic) -> None:
    feed = ShardFeed("t", 0)
    for number in range(6):
        feed.add(number, 0)
    assert read_all(feed, topic) == {}
    last = topic.append(b"x", partition=4).offset
    taken = feed.read(view_of(topic), 10, 1 << 20)
    assert offsets(taken) == {4: [last]}
    assert taken.positions == {4: last + 28}


def test_bytes_bound_a_read_but_not_its_first_message(topic: tubestore.Topic) -> None:
    acks = [topic.append(b"x" * 100, partition=0).offset for _ in range(3)]
    feed = ShardFeed("t", 0)
    feed.add(0, 0)
    assert offsets(feed.read(view_of(topic), 10, 1)) == {0: acks[:1]}
    feed.add(1, 0)
    assert read_all(feed, topic) == {0: acks[1:]}
    more = [topic.append(b"x" * 100, partition=0).offset for _ in range(3)]
    assert offsets(feed.read(view_of(topic), 10, 1)) == {0: more[:1]}
    assert offsets(feed.read(view_of(topic), 10, 320)) == {0: more[1:]}


def test_a_position_in_the_middle_is_seeked_to_and_a_later_one_is_waited_for(
    topic: tubestore.Topic,
) -> None:
    acks = [topic.append(b"x", partition=0).offset for _ in range(4)]
    feed = ShardFeed("t", 0)
    feed.add(0, 0)
    assert read_all(feed, topic) == {0: acks}
    feed.add(0, acks[2])
    assert feed.position(0) == acks[2]
    assert read_all(feed, topic) == {0: acks[2:]}
    feed.add(0, acks[3] + 28 * 3)
    more = [topic.append(b"x", partition=0).offset for _ in range(4)]
    assert read_all(feed, topic) == {0: more[2:]}


def test_a_laggard_does_not_keep_the_others_from_new_messages(topic: tubestore.Topic) -> None:
    for _ in range(50):
        topic.append(b"x", partition=0)
    feed = ShardFeed("t", 0)
    feed.add(1, view_of(topic).index_end)
    feed.read(view_of(topic), 1, 1 << 20)
    feed.add(0, 0)
    new = topic.append(b"x", partition=1).offset
    found = offsets(feed.read(view_of(topic), 4, 1 << 20))
    assert found[1] == [new]
    assert len(found[0]) == 2


def test_a_partition_that_is_read_no_more_gives_its_position_back(topic: tubestore.Topic) -> None:
    first = topic.append(b"x", partition=0).offset
    feed = ShardFeed("t", 0)
    feed.add(0, 0)
    feed.add(1, 0)
    feed.read(view_of(topic), 10, 1 << 20)
    assert feed.remove(0) == first + 28
    assert feed.remove(0) is None
    assert feed.partitions() == [1]
    topic.append(b"x", partition=0)
    assert read_all(feed, topic) == {}


def test_filtered_messages_are_passed_by(topic: tubestore.Topic) -> None:
    acks = [topic.append(b"x", partition=0, filter_item="ab"[n % 2]).offset for n in range(6)]
    feed = ShardFeed("t", 0, item_filter(["b"]))
    feed.add(0, 0)
    assert read_all(feed, topic) == {0: acks[1::2]}
    more = [topic.append(b"x", partition=0, filter_item="ab"[n % 2]).offset for n in range(6)]
    assert read_all(feed, topic, limit=2) == {0: more[1::2]}


def test_positions_that_retention_has_passed_go_on_at_the_first_message(
    topic: tubestore.Topic,
) -> None:
    for _ in range(40):
        topic.append(b"x", partition=0)
        topic.flush()
    topic.retain(max_bytes=600)
    first = view_of(topic).index_start
    assert first > 0
    feed = ShardFeed("t", 0)
    feed.add(0, 28)
    feed.add(1, first)
    assert feed.skip_removed(first) == {0: 28}
    assert feed.skip_removed(first) == {}
    assert read_all(feed, topic)[0][0] == first


@pytest.mark.parametrize("run", range(40))
def test_every_message_comes_once_and_in_order_whatever_is_added_and_removed(
    topic: tubestore.Topic, run: int
) -> None:
    random = Random(seed_of_run(run))
    wanted = random.choice((EVERYTHING, item_filter(["a"])))
    feed = ShardFeed("t", 0, wanted)
    sent: dict[int, list[int]] = defaultdict(list)
    seen: dict[int, list[int]] = defaultdict(list)
    away = dict.fromkeys(range(6), 0)
    for _ in range(60):
        drawn = random.random()
        number = random.randrange(6)
        if drawn < 0.5:
            item = random.choice("ab")
            durability = random.choice(("memory", "page_cache"))
            for _ in range(random.randrange(1, 6)):
                ack = topic.append(b"x", partition=number, filter_item=item, durability=durability)
                if wanted is EVERYTHING or item == "a":
                    sent[number].append(ack.offset)
        elif drawn < 0.7:
            if number in away:
                feed.add(number, away.pop(number))
            else:
                away[number] = feed.remove(number)
        else:
            room = random.choice((60, 1 << 20))
            taken = feed.read(view_of(topic), random.randrange(1, 12), room)
            before = feed.positions()
            for partition, some in offsets(taken).items():
                seen[partition] += some
                assert taken.positions[partition] <= before[partition]
    for number, position in away.items():
        feed.add(number, position)
    lag = feed.unread(view_of(topic))
    if wanted is EVERYTHING:
        assert lag == {n: len(sent[n]) - len(seen[n]) for n in range(6)}
    for number, some in read_all(feed, topic, random.randrange(1, 30)).items():
        seen[number] += some
    assert seen == sent or {n: s for n, s in seen.items() if s} == {
        n: s for n, s in sent.items() if s
    }
