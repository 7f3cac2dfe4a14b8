"""Which member of a group gets which partitions: the strategies, as plain functions.

A strategy is given the members with their topics, the partitions of each topic, and the member
that has each partition until now. It returns the partitions of each member. Every process computes
the same from the same input: members and partitions are sorted first, members by the units of
UTF-16 as Java's strings are.

`average`, `circle` and `consistent_hash` are RocketMQ's, topic by topic. `sticky` balances over all
topics and moves as few partitions as that needs.

>>> parts = {"logs": range(8)}
>>> two = {"a": ["logs"], "b": ["logs"]}
>>> average({**two, "c": ["logs"]}, parts, {})["a"]
[('logs', 0), ('logs', 1), ('logs', 2)]
>>> before = {p: member for member, ps in sticky(two, parts, {}).items() for p in ps}
>>> after = sticky({**two, "c": ["logs"]}, parts, before)
>>> sum(before[p] != member for member, ps in after.items() for p in ps)
2
"""

from __future__ import annotations

import hashlib
import inspect
import operator
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tubestore.errors import InvalidOption

#: A topic and the id of one of its partitions.
Partition = tuple[str, int]
#: Members with the topics that each has subscribed to.
Members = Mapping[str, Collection[str]]
#: The ids of the partitions of each topic.
Partitions = Mapping[str, Sequence[int]]
#: The member that has each partition until now.
Held = Mapping[Partition, str]
Assignment = Mapping[str, Iterable[Partition]]
Strategy = Callable[[Members, Partitions, Held], Assignment]

#: Places that each member has on the ring of `consistent_hash`, as in RocketMQ.
VIRTUAL_NODES = 10


def java_order(text: str) -> bytes:
    """Return the key by which Java sorts strings: the units of UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_members(members: Iterable[str]) -> list[str]:
    """Return the ids of members in the order that every process has."""
    return sorted(members, key=java_order)


def average(members: Members, partitions: Partitions, held: Held) -> dict[str, list[Partition]]:
    """Give each member a run of a topic's partitions; the first members get one more."""
    return _by_topic(members, partitions, _average)


def _average(members: Sequence[str], ids: Sequence[int]) -> list[str]:
    size, rest = divmod(len(ids), len(members))
    return [
        member
        for place, member in enumerate(members)
        for _ in range(size + (1 if place < rest else 0))
    ]


def circle(members: Members, partitions: Partitions, held: Held) -> dict[str, list[Partition]]:
    """Deal a topic's partitions to its members in turn."""
    return _by_topic(
        members, partitions, lambda some, ids: [some[n % len(some)] for n in range(len(ids))]
    )


def consistent_hash(
    members: Members, partitions: Partitions, held: Held
) -> dict[str, list[Partition]]:
    """Give each partition to the next member on a ring of hashes: few move when members change."""
    return hashed(lambda topic, number: f"{topic}-{number}")(members, partitions, held)


def hashed(
    key_of: Callable[[str, int], str], virtual_nodes: int = VIRTUAL_NODES
) -> Callable[[Members, Partitions, Held], dict[str, list[Partition]]]:
    """Return `consistent_hash` with another text that is hashed for a partition."""

    def strategy(
        members: Members, partitions: Partitions, held: Held
    ) -> dict[str, list[Partition]]:
        rings: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}
        found: dict[str, list[Partition]] = {member: [] for member in members}
        for topic, ids in _sorted(partitions):
            some = tuple(_subscribed(members, topic))
            if not some:
                continue
            if some not in rings:
                ring = {
                    _hash(f"{member}-{copy}"): member
                    for member in some
                    for copy in range(virtual_nodes)
                }
                places = sorted(ring)
                rings[some] = places, [ring[place] for place in places]
            places, owners = rings[some]
            for number in ids:
                at = bisect_left(places, _hash(key_of(topic, number)))
                found[owners[at % len(owners)]].append((topic, number))
        return found

    return strategy


def _hash(text: str) -> int:
    """Return the first four bytes of the MD5 as RocketMQ's ring takes them."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def fixed(given: Mapping[str, Mapping[str, Iterable[int]]]) -> Strategy:
    """Return a strategy that gives members, by id, the partitions of each topic that are listed.

    A partition that no living member has in its list is read by no member. Of two lists with the
    same partition the one of the first member counts.
    """
    lists = {
        member: {(topic, operator.index(number)) for topic, ids in topics.items() for number in ids}
        for member, topics in given.items()
    }

    def strategy(
        members: Members, partitions: Partitions, held: Held
    ) -> dict[str, list[Partition]]:
        found: dict[str, list[Partition]] = {member: [] for member in members}
        for topic, ids in _sorted(partitions):
            some = _subscribed(members, topic)
            for number in ids:
                partition = (topic, number)
                member = next((m for m in some if partition in lists.get(m, ())), None)
                if member is not None:
                    found[member].append(partition)
        return found

    return strategy


def _by_topic(
    members: Members,
    partitions: Partitions,
    deal: Callable[[Sequence[str], Sequence[int]], Sequence[str]],
) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = {member: [] for member in members}
    for topic, ids in _sorted(partitions):
        some = _subscribed(members, topic)
        if some:
            for number, member in zip(ids, deal(some, ids), strict=True):
                found[member].append((topic, number))
    return found


def _sorted(partitions: Partitions) -> list[tuple[str, list[int]]]:
    return [(topic, sorted(partitions[topic])) for topic in sorted(partitions)]


def _subscribed(members: Members, topic: str) -> list[str]:
    return sorted_members(member for member, topics in members.items() if topic in topics)


# -- sticky --------------------------------------------------------------------------------------


def sticky(members: Members, partitions: Partitions, held: Held) -> dict[str, list[Partition]]:
    """Balance the members over all topics, and move as few partitions as that needs.

    No member has two partitions more than another one that could take one of them, directly or
    through a chain of others.
    """
    order = sorted_members(members)
    found: dict[str, dict[str, list[int]]] = {member: {} for member in order}
    topics_of = {member: frozenset(members[member]) for member in order}
    free: list[Partition] = []
    for topic, ids in _sorted(partitions):
        for number in ids:
            member = held.get((topic, number))
            if member in found and topic in topics_of[member]:
                found[member].setdefault(topic, []).append(number)
            elif any(topic in topics for topics in topics_of.values()):
                free.append((topic, number))
    loads = {member: sum(map(len, found[member].values())) for member in order}
    if len(set(topics_of.values())) == 1:
        _level(order, found, loads, free)
    else:
        _spread(order, topics_of, found, loads, free)
        while _shift(order, topics_of, found, loads):
            pass
    return {
        member: [(topic, number) for topic in sorted(owned) for number in sorted(owned[topic])]
        for member, owned in found.items()
    }


def _level(
    order: Sequence[str],
    found: dict[str, dict[str, list[int]]],
    loads: dict[str, int],
    free: list[Partition],
) -> None:
    """Balance members with the same topics: those that have most keep one more."""
    size, rest = divmod(sum(loads.values()) + len(free), len(order))
    by_load = sorted(order, key=lambda member: -loads[member])
    quotas = {member: size + (place < rest) for place, member in enumerate(by_load)}
    for member in order:
        for topic in sorted(found[member], reverse=True):
            ids = found[member][topic]
            while ids and loads[member] > quotas[member]:
                free.append((topic, ids.pop()))
                loads[member] -= 1
    free.sort()
    waiting = deque(free)
    for member in order:
        while waiting and loads[member] < quotas[member]:
            topic, number = waiting.popleft()
            found[member].setdefault(topic, []).append(number)
            loads[member] += 1


def _spread(
    order: Sequence[str],
    topics_of: Mapping[str, Collection[str]],
    found: dict[str, dict[str, list[int]]],
    loads: dict[str, int],
    free: list[Partition],
) -> None:
    """Give each free partition to the member with the least, those with few takers first."""
    takers = {
        topic: [member for member in order if topic in topics_of[member]]
        for topic in {topic for topic, _ in free}
    }
    for topic, number in sorted(free, key=lambda partition: (len(takers[partition[0]]), partition)):
        member = min(takers[topic], key=loads.__getitem__)
        found[member].setdefault(topic, []).append(number)
        loads[member] += 1


def _shift(
    order: Sequence[str],
    topics_of: Mapping[str, Collection[str]],
    found: dict[str, dict[str, list[int]]],
    loads: dict[str, int],
) -> bool:
    """Move one partition along the shortest chain from a member to one with two fewer, if any."""
    for start in sorted(order, key=lambda member: -loads[member]):
        came: dict[str, tuple[str, str]] = {}
        waiting = deque([start])
        while waiting:
            giver = waiting.popleft()
            for topic in sorted(topic for topic, ids in found[giver].items() if ids):
                for taker in order:
                    if taker in came or taker == start or topic not in topics_of[taker]:
                        continue
                    came[taker] = giver, topic
                    if loads[taker] <= loads[start] - 2:
                        loads[taker] += 1
                        loads[start] -= 1
                        while taker != start:
                            giver, topic = came[taker]
                            found[taker].setdefault(topic, []).append(found[giver][topic].pop())
                            taker = giver
                        return True
                    waiting.append(taker)
    return False


# -- by name -------------------------------------------------------------------------------------

STRATEGIES: dict[str, Strategy] = {
    "average": average,
    "circle": circle,
    "consistent_hash": consistent_hash,
    "sticky": sticky,
}


def named_strategy(
    given: str | Mapping[str, Mapping[str, Iterable[int]]] | Strategy,
) -> tuple[str, Strategy]:
    """Return the name and the function of a strategy as users give it; InvalidOption if unknown.

    A text is one of `STRATEGIES`, a mapping is that of `fixed`, anything callable is the caller's
    own.
    """
    if isinstance(given, str):
        if given not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise InvalidOption("strategy", f"{given!r} is unknown; known are {known}")
        return given, STRATEGIES[given]
    if isinstance(given, Mapping):
        try:
            return "fixed", fixed(given)
        except (AttributeError, TypeError, ValueError):
            form = "{member: {topic: [partition, ...]}}"
            raise InvalidOption("strategy", f"{given!r:.80}: a mapping is {form}") from None
    if callable(given):
        try:
            inspect.signature(given).bind({}, {}, {})
        except TypeError:
            form = "(members, partitions, held)"
            raise InvalidOption("strategy", f"{given!r:.80} cannot be called with {form}") from None
        except ValueError:
            pass  # it shows no signature: the first call finds out
        module, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
        return f"{module}.{name or type(given).__qualname__}", given
    raise InvalidOption("strategy", f"{given!r}: a name, a mapping of members, or a callable")


def checked_assignment(
    answer: Assignment, members: Members, partitions: Partitions
) -> dict[Partition, str]:
    """Return the member of each partition; InvalidOption unless it is an assignment.

    Each partition has one member at most, which is in the group and has subscribed to the topic.
    """
    try:
        pairs = {member: [(t, operator.index(n)) for t, n in given]
                 for member, given in answer.items()}  # fmt: skip
    except (AttributeError, TypeError, ValueError):
        form = "{member: [(topic, partition), ...]}"
        raise InvalidOption("strategy", f"it returned {answer!r:.80}; {form} is needed") from None
    found: dict[Partition, str] = {}
    known = {topic: frozenset(ids) for topic, ids in partitions.items()}
    for member, given in pairs.items():
        if member not in members:
            raise InvalidOption("strategy", f"it returned {member!r}, which is not a member")
        for topic, number in given:
            if not isinstance(topic, str) or number not in known.get(topic, ()):
                raise InvalidOption("strategy", f"it returned {topic}/{number}, which is not there")
            if topic not in members[member]:
                raise InvalidOption("strategy", f"{member!r} has not subscribed to {topic!r}")
            if found.setdefault((topic, number), member) != member:
                raise InvalidOption("strategy", f"it gave {topic}/{number} to two members")
    return found
