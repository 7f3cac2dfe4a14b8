"""How clients share queues; the real classes decide beside it (`tests/compat/interop`)."""

from __future__ import annotations

import itertools
import random

import pytest

from rocketcompat.broker.allocation import (
    MessageQueue,
    Strategy,
    allocated,
    average,
    by_configuration,
    by_machine_room,
    circle,
    consistent_hash,
    machine_room_nearby,
    queue_by_hash,
)
from tubestore.errors import InvalidMessage


def queues(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def shares(strategy: Strategy, count: int, clients: str) -> list[list[int]]:
    return [
        [queue.queue_id for queue in allocated(strategy, "g", name, queues(count), clients)]
        for name in clients
    ]


@pytest.mark.parametrize(
    ("count", "clients", "wanted"),
    [
        (8, "abc", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, "abc", [[0], [1], []]),
        (4, "ab", [[0, 1], [2, 3]]),
        (1, "a", [[0]]),
    ],
)
def test_average_shares_like_pages(count: int, clients: str, wanted: list[list[int]]) -> None:
    assert shares(average, count, clients) == wanted


def test_circle_deals_in_turns() -> None:
    assert shares(circle, 5, "ab") == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("strategy", [average, circle, consistent_hash()])
def test_all_queues_are_shared_and_none_twice_whatever_the_order(strategy: Strategy) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for count, members in itertools.product(range(1, 12), range(1, 6)):
        clients = [f"10.0.0.{n}@{chance.randrange(99)}" for n in range(members)]
        shuffled = queues(count)
        got = []
        for client in clients:
            chance.shuffle(shuffled)
            chance.shuffle(clients := list(clients))
            got += allocated(strategy, "g", client, shuffled, clients)
        assert sorted(got) == queues(count)


def test_few_queues_move_on_a_ring_when_a_client_goes() -> None:
    ring = consistent_hash()
    before = {
        queue: name for name in "abcd" for queue in allocated(ring, "g", name, queues(100), "abcd")
    }
    after = {
        queue: name for name in "abc" for queue in allocated(ring, "g", name, queues(100), "abc")
    }
    assert all(after[queue] == name for queue, name in before.items() if name != "d")


def test_a_ring_without_nodes_gives_nothing_and_a_negative_number_is_refused() -> None:
    assert shares(consistent_hash(0), 4, "ab") == [[], []]
    with pytest.raises(InvalidMessage, match="virtual_nodes"):
        consistent_hash(-1)


def test_rooms_are_read_from_the_brokers_names() -> None:
    given = [*queues(3, "r1@b"), *queues(3, "r2@b"), *queues(3, "plain"), *queues(1, "r1@b@c")]
    share = by_machine_room(["r1"])
    got = [allocated(share, "g", name, given, "ab") for name in "ab"]
    assert [[q.queue_id for q in part] for part in got] == [[0, 2], [1]]
    assert {q.broker_name for part in got for q in part} == {"r1@b"}


def test_queues_stay_in_their_room_unless_it_has_no_client() -> None:
    given = [*queues(2, "r1"), *queues(2, "r2"), *queues(2, "r3")]
    share = machine_room_nearby(average, lambda queue: queue.broker_name, lambda name: name[:2])
    got = {
        name: [(q.broker_name, q.queue_id) for q in allocated(share, "g", name, given, names)]
        for names in [["r1-a", "r2-b"]]
        for name in names
    }
    assert got["r1-a"] == [("r1", 0), ("r1", 1), ("r3", 0)]
    assert got["r2-b"] == [("r2", 0), ("r2", 1), ("r3", 1)]
    nowhere = machine_room_nearby(average, lambda queue: "", lambda name: "r1")
    with pytest.raises(InvalidMessage, match="no machine room"):
        allocated(nowhere, "g", "a", given, "a")


def test_a_configuration_is_what_a_client_gets() -> None:
    wanted = queues(2)[1:]
    assert allocated(by_configuration(wanted), "g", "a", queues(4), "ab") == wanted


def test_a_client_that_is_no_member_gets_nothing_and_nothing_to_share_is_refused() -> None:
    for strategy in (average, circle, consistent_hash(), by_machine_room(["r"])):
        assert allocated(strategy, "g", "x", queues(4), "ab") == []
        for client, given, clients in (("", queues(1), "a"), ("a", [], "a"), ("a", queues(1), "")):
            with pytest.raises(InvalidMessage, match="is empty"):
                allocated(strategy, "g", client, given, clients)


def test_clients_sort_as_java_sorts_them() -> None:
    high, low = "\uffee", "\U0001f600"  # UTF-16 has the second as two smaller units
    assert [q.queue_id for q in allocated(circle, "g", low, queues(2), [high, low])] == [0]


def test_a_key_has_always_the_same_queue() -> None:
    assert [queue_by_hash("Aa", 7), queue_by_hash("BB", 7)] == [2112 % 7] * 2
    assert {queue_by_hash(f"k{n}", 4) for n in range(50)} == {0, 1, 2, 3}
