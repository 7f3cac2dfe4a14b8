"""Queues, and how the clients of a group share them: RocketMQ's allocation strategies.

Pure functions: every client computes the same from the same sorted lists (`allocated`). A strategy
is `(group, client id, queues, client ids) -> queues`; a caller's own function is one, too. What
each returns is decided by RocketMQ's `AllocateMessageQueue…` classes (`tests/compat/interop`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from tubestore.core.java_hash import java_hash
from tubestore.errors import InvalidMessage

T = TypeVar("T")


class MessageQueue(NamedTuple):
    """A queue of a topic at a broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return the text that RocketMQ hashes."""
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name},"
            f" queueId={self.queue_id}]"
        )


Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]


def allocated(
    strategy: Strategy, group: str, client_id: str, queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:  # fmt: skip
    """Return a client's share of a topic, from queues and ids in any order.

    >>> queues = [MessageQueue("T", "b", n) for n in range(8)]
    >>> [len(allocated(average, "g", name, queues, "cab")) for name in "abc"]
    [3, 3, 2]
    """
    in_order = sorted(queues, key=lambda q: (_java(q.topic), _java(q.broker_name), q.queue_id))
    return list(strategy(group, client_id, in_order, sorted(client_ids, key=_java)))


def _java(text: str) -> bytes:
    """Return a key that sorts as Java compares texts, by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def _is_member(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """True if a client can get queues; InvalidMessage for nothing to share."""
    for name, given in (("client_id", client_id), ("queues", queues), ("client_ids", client_ids)):
        if not given:
            raise InvalidMessage(f"{name}: is empty")
    return client_id in client_ids


def average(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Share like pages: consecutive queues, the first clients get one more."""
    if not _is_member(client_id, queues, client_ids):
        return []
    place, (least, more) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    start = place * least + min(place, more)
    return list(queues[start : start + least + (place < more)])


def circle(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Deal queues out in turns."""
    if not _is_member(client_id, queues, client_ids):
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def by_configuration(wanted: Iterable[MessageQueue]) -> Strategy:
    """Return the strategy that gives a client the queues of its own configuration."""
    configured = list(wanted)
    return lambda group, client_id, queues, client_ids: configured


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """Return the strategy that shares the queues of brokers named "room@name" in these rooms."""
    wanted = frozenset(rooms)

    def share(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(client_id, queues, client_ids):
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in wanted]
        place, (least, more) = client_ids.index(client_id), divmod(len(near), len(client_ids))
        got = near[least * place : least * (place + 1)]
        return got + ([near[place + least * len(client_ids)]] if place < more else [])

    return share


def _room(broker_name: str) -> str | None:
    """Return the room in a broker's name, as Java's `split("@")` finds it."""
    parts = broker_name.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    within: Strategy, room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> Strategy:  # fmt: skip
    """Return the strategy that shares each room's queues among the room's clients.

    All clients share the queues of rooms without a client. `within` shares in each case.
    """

    def share(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(client_id, queues, client_ids):
            return []
        by_room = _grouped(queues, room_of_queue, "queue")
        clients = _grouped(client_ids, room_of_client, "client")
        own = room_of_client(client_id)
        got: list[MessageQueue] = []
        if own in by_room:
            got += within(group, client_id, by_room[own], clients[own])
        for room in sorted(by_room.keys() - clients.keys() - {own}, key=_java):
            got += within(group, client_id, by_room[room], client_ids)
        return got

    return share


def _grouped(items: Iterable[T], room_of: Callable[[T], str], kind: str) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise InvalidMessage(f"{kind} {item!s} has no machine room")
        found.setdefault(room, []).append(item)
    return found


def consistent_hash(
    virtual_nodes: int = 10, hash_of: Callable[[str], int] | None = None
) -> Strategy:
    """Return the strategy of a ring of hashes: few queues move when a client comes or goes."""
    if virtual_nodes < 0:
        raise InvalidMessage(f"virtual_nodes: {virtual_nodes} is below 0")
    hashed = hash_of or _md5

    def share(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(client_id, queues, client_ids):
            return []
        ring = {
            hashed(f"{name}-{node}"): name
            for name in dict.fromkeys(client_ids)
            for node in range(virtual_nodes * client_ids.count(name))
        }
        places = sorted(ring)
        if not places:
            return []
        return [
            queue for queue in queues
            if ring[places[bisect_left(places, hashed(str(queue))) % len(places)]] == client_id
        ]  # fmt: skip

    return share


def _md5(text: str) -> int:
    """Return the first four bytes of the text's MD5, as RocketMQ's ring has it."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def queue_by_hash(key: str, queues: int) -> int:
    """Return the queue of a producer's key (`SelectMessageQueueByHash`).

    >>> queue_by_hash("order-7", 4), queue_by_hash("polygenelubricants", 3)
    (0, 2)
    """
    return abs(java_hash(key)) % queues
