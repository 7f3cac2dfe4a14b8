"""The members of a group, and the partitions of each: the rules, without files or time.

Each partition has two owners: the *target*, which the strategy chose, and the *holder*, which reads
it and commits for it. They differ while a partition moves:

| step | by | target | holder |
| --- | --- | --- | --- |
| a member joins, leaves or expires, or topics grow: `generation` rises | any | a | a |
| `settle`: the strategy is asked | any member | b | a |
| `release`: a has finished its work and committed | a | b | – |
| `take` | b | b | b |

Always true:
- a partition has one holder at most, and only its holder commits for it (`check_holder`);
- a holder loses a partition by its own `release` or `leave`, or when it is removed: by `expire`,
  when others may take its partitions;
- a removed member is recognized by its token, also after a new member took its id (fencing).

Heartbeats are kept by the caller; `expire` is given the time since each.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from tubestore.errors import InvalidMessage, MemberFenced
from tubestore.groups.assignment import Partition, Strategy, checked_assignment
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.values import whole_number

Array = np.ndarray[Any, Any]
#: The ids of partitions by topic, ascending.
Owned = dict[str, Array]
#: A partition that no member has.
NONE = -1


@dataclass(frozen=True, slots=True)
class Member:
    """One member; `slot` is its number in the tables, `token` is never given twice."""

    id: str
    token: str
    slot: int
    topics: tuple[str, ...]
    session_ms: int


@dataclass(frozen=True, slots=True)
class TopicShape:
    """The partitions of a topic: so many in each of so many stores."""

    partitions: int
    stores: int = 1

    @property
    def count(self) -> int:
        """Partitions in all stores."""
        return self.partitions * self.stores

    def ids(self) -> Array:
        """Return the ids of all partitions, ascending; not to be changed."""
        return _ids_of(self)

    def places(self, ids: Array) -> Array:
        """Return the place of each id among all ids; -1 for one that there is not."""
        store, place = np.divmod(np.asarray(ids, np.int64), PARTITIONS_PER_STORE)
        known = (store >= 0) & (store < self.stores) & (place < self.partitions)
        return np.where(known, store * self.partitions + place, -1)


@lru_cache(maxsize=1024)
def _ids_of(shape: TopicShape) -> Array:
    stores = np.arange(shape.stores, dtype=np.int64) * PARTITIONS_PER_STORE
    ids = (stores[:, None] + np.arange(shape.partitions)).reshape(-1)
    ids.flags.writeable = False
    return ids


class Membership:
    """The members of one group and their partitions; not thread-safe."""

    def __init__(self, group: str, strategy: str = "") -> None:
        self.group = group
        #: Rises with every change of members, topics or strategy.
        self.generation = 0
        #: The generation for which targets were chosen.
        self.settled = 0
        #: The name of the strategy that all members use.
        self.strategy = strategy
        self.members: dict[str, Member] = {}
        #: The topics that members have subscribed to, as far as they are there.
        self.shapes: dict[str, TopicShape] = {}
        #: By topic: the slots of the targets and of the holders, in the order of the ids.
        self._targets: dict[str, Array] = {}
        self._holders: dict[str, Array] = {}

    # -- members -----------------------------------------------------------------------------

    def join(
        self, member: str, token: str, topics: Iterable[str], *, session_ms: int, strategy: str
    ) -> Member:
        """Add a member; InvalidMessage if its id is taken or if the group has another strategy.

        A group without members takes the strategy of the first one.
        """
        if member in self.members:
            raise InvalidMessage(f"group {self.group!r} has a member {member!r} already")
        if self.members and strategy != self.strategy:
            raise InvalidMessage(
                f"group {self.group!r} assigns partitions by {self.strategy!r}, not {strategy!r}"
            )
        self.strategy = strategy
        taken = {each.slot for each in self.members.values()}
        slot = next(number for number in count() if number not in taken)
        joined = Member(member, token, slot, tuple(sorted(set(topics))), session_ms)
        self.members[member] = joined
        self.generation += 1
        return joined

    def check_member(self, member: str, token: str) -> Member:
        """Return a member; MemberFenced if the group has removed it."""
        found = self.members.get(member)
        if found is None or found.token != token:
            raise MemberFenced(self.group, member, "the group has removed it: its session ended")
        return found

    def leave(self, member: str, token: str) -> None:
        """Remove a member that is there; its partitions are free at once."""
        if self.is_member(member, token):
            self._remove(self.members[member])

    def is_member(self, member: str, token: str) -> bool:
        """Return True unless the group has removed the member."""
        found = self.members.get(member)
        return found is not None and found.token == token

    def expire(self, silent_ms: Mapping[str, float]) -> list[str]:
        """Remove members with a last heartbeat longer ago than their session lasts.

        `silent_ms`: for each member the time since its heartbeat; a member that is not in it has
        never had one and is removed. Returns the ids of those removed.
        """
        gone = [
            member
            for member in self.members.values()
            if silent_ms.get(member.id, float("inf")) > member.session_ms
        ]
        for member in gone:
            self._remove(member)
        return [member.id for member in gone]

    def _remove(self, member: Member) -> None:
        del self.members[member.id]
        self.generation += 1
        for owners in (*self._holders.values(), *self._targets.values()):
            owners[owners == member.slot] = NONE

    # -- partitions --------------------------------------------------------------------------

    @property
    def subscribed(self) -> list[str]:
        """The topics that any member has subscribed to."""
        return sorted({topic for member in self.members.values() for topic in member.topics})

    def see_topics(self, shapes: Mapping[str, TopicShape]) -> None:
        """Take note of the topics that are there; new and larger ones begin a generation."""
        wanted = {topic: shapes[topic] for topic in self.subscribed if topic in shapes}
        if wanted == self.shapes:
            return
        self._targets = {t: self._grown(self._targets, t, s) for t, s in wanted.items()}
        self._holders = {t: self._grown(self._holders, t, s) for t, s in wanted.items()}
        self.shapes = wanted
        self.generation += 1

    def _grown(self, owners: Mapping[str, Array], topic: str, shape: TopicShape) -> Array:
        grown = np.full(shape.count, NONE, np.int32)
        old = self.shapes.get(topic)
        if old is not None:
            places = shape.places(old.ids())
            kept = places >= 0
            grown[places[kept]] = owners[topic][kept]
        return grown

    @property
    def is_settled(self) -> bool:
        """True if the targets are those of this generation."""
        return self.settled == self.generation

    def settle(self, strategy: Strategy) -> None:
        """Choose the target of every partition; what the strategy raises leaves the old ones."""
        members = {member.id: member.topics for member in self.members.values()}
        ids = {topic: shape.ids().tolist() for topic, shape in self.shapes.items()}
        answer = strategy(members, ids, self._held()) if members else {}
        chosen = checked_assignment(answer, members, ids)
        targets = {
            topic: np.full(shape.count, NONE, np.int32) for topic, shape in self.shapes.items()
        }
        by_topic: dict[str, tuple[list[int], list[int]]] = {}
        for (topic, number), member in chosen.items():
            numbers, slots = by_topic.setdefault(topic, ([], []))
            numbers.append(number)
            slots.append(self.members[member].slot)
        for topic, (numbers, slots) in by_topic.items():
            targets[topic][self.shapes[topic].places(np.array(numbers))] = slots
        self._targets = targets
        self.settled = self.generation

    def _held(self) -> dict[Partition, str]:
        """Return the member of each partition: its holder, or the target that was to take it."""
        names = {member.slot: member.id for member in self.members.values()}
        found: dict[Partition, str] = {}
        for topic, shape in self.shapes.items():
            holders = self._holders[topic]
            owners = np.where(holders == NONE, self._targets[topic], holders)
            for number, slot in zip(shape.ids().tolist(), owners.tolist(), strict=True):
                if slot in names:
                    found[topic, number] = names[slot]
        return found

    def targets(self, member: Member) -> Owned:
        """Return the partitions that a member is to have."""
        return self._chosen(lambda topic: self._targets[topic] == member.slot)

    def held(self, member: Member) -> Owned:
        """Return the partitions that a member has."""
        return self._chosen(lambda topic: self._holders[topic] == member.slot)

    def unassigned(self) -> Owned:
        """Return the partitions that no member is to have."""
        return self._chosen(lambda topic: self._targets[topic] == NONE)

    def leaving(self, member: Member) -> Owned:
        """Return the partitions that a member has and is to give up."""
        return self._chosen(
            lambda topic: (
                (self._holders[topic] == member.slot) & (self._targets[topic] != member.slot)
            )
        )

    def coming(self, member: Member) -> Owned:
        """Return the partitions that `take` would give a member now."""
        return self._chosen(
            lambda topic: (self._targets[topic] == member.slot) & (self._holders[topic] == NONE)
        )

    def _chosen(self, which: Any) -> Owned:
        found = {}
        for topic, shape in sorted(self.shapes.items()):
            places = np.flatnonzero(which(topic))
            if len(places):
                found[topic] = shape.ids()[places]
        return found

    def take(self, member: Member) -> Owned:
        """Give a member the partitions that are free and meant for it; returns them."""
        coming = self.coming(member)
        for topic, ids in coming.items():
            self._holders[topic][self.shapes[topic].places(ids)] = member.slot
        return coming

    def release(self, member: Member, partitions: Mapping[str, Array]) -> None:
        """Free partitions that a member had; those that it has not stay as they are."""
        for topic, ids in partitions.items():
            if topic in self.shapes:
                places = self.shapes[topic].places(ids)
                places = places[places >= 0]
                mine = places[self._holders[topic][places] == member.slot]
                self._holders[topic][mine] = NONE

    def check_holder(self, member: Member, partitions: Mapping[str, Array]) -> None:
        """Raise MemberFenced unless a member has all of some partitions."""
        for topic, ids in partitions.items():
            shape = self.shapes.get(topic)
            places = np.full(len(ids), -1) if shape is None else shape.places(ids)
            mine = places >= 0
            if shape is not None:
                mine &= self._holders[topic][places] == member.slot
            if not mine.all():
                number = int(np.asarray(ids)[~mine][0])
                raise MemberFenced(self.group, member.id, f"it does not have {topic}/{number}")

    # -- as JSON -----------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return everything; tables as base64 of their numbers (4 bytes, little-endian)."""
        return {
            "group": self.group,
            "generation": self.generation,
            "settled": self.settled,
            "strategy": self.strategy,
            "members": {
                member.id: {
                    "token": member.token,
                    "slot": member.slot,
                    "topics": member.topics,
                    "session_ms": member.session_ms,
                }
                for member in self.members.values()
            },
            "topics": {
                topic: {
                    "partitions": shape.partitions,
                    "stores": shape.stores,
                    "targets": _text_of(self._targets[topic]),
                    "holders": _text_of(self._holders[topic]),
                }
                for topic, shape in self.shapes.items()
            },
        }

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Membership:
        """Return what `as_json` has written; ValueError, KeyError or TypeError for another."""
        found = cls(_text(given["group"]), _text(given["strategy"]))
        found.generation, found.settled = _number(given["generation"]), _number(given["settled"])
        for member, row in given["members"].items():
            topics = tuple(map(_text, row["topics"]))
            found.members[member] = Member(
                member,
                _text(row["token"]),
                _number(row["slot"]),
                topics,
                _number(row["session_ms"]),
            )
        for topic, row in given["topics"].items():
            shape = TopicShape(_number(row["partitions"]), _number(row["stores"]))
            found.shapes[topic] = shape
            found._targets[topic] = _table_of(row["targets"], shape.count)
            found._holders[topic] = _table_of(row["holders"], shape.count)
        return found

    def check_invariants(self) -> None:
        """Raise AssertionError if the tables contradict each other; for tests."""
        slots = [member.slot for member in self.members.values()]
        assert len(set(slots)) == len(slots), "two members have one slot"
        assert self.settled <= self.generation, "settled ahead of the generation"
        for topic, shape in self.shapes.items():
            for owners in (self._targets[topic], self._holders[topic]):
                assert len(owners) == shape.count, "a table of another size"
                assert set(owners.tolist()) <= {NONE, *slots}, "a partition of no member"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> int:
    found = whole_number(value)
    if found is None or found < 0:
        raise TypeError(f"{value!r} is not a number from 0 on")
    return found


def _text_of(owners: Array) -> str:
    return base64.b64encode(owners.astype("<i4").tobytes()).decode()


def _table_of(text: str, size: int) -> Array:
    owners = np.frombuffer(base64.b64decode(text, validate=True), "<i4").astype(np.int32)
    if len(owners) != size:
        raise ValueError(f"a table of {len(owners)} partitions, not {size}")
    return owners
