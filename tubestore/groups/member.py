"""One member of a group: it joins, takes and gives up partitions, commits, and leaves.

All of it happens under the group's lock and takes microseconds; no lock is held while the caller's
code runs. A partition moves in two turns: the member that has it learns in its turn that it is to
leave, finishes, commits and releases it; the next turn of the other member takes it.
"""

from __future__ import annotations

import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from tubestore.clock import Clock
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord, MemberFenced, OutputIncomplete, TubeStoreError
from tubestore.groups.assignment import Partition, Strategy
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.membership import Member, Owned, TopicShape
from tubestore.groups.outputs import Prepared, in_files
from tubestore.groups.positions import PositionRows
from tubestore.messages import BatchAck
from tubestore.options import Durability

#: A session outlives so many heartbeats that do not come.
BEATS_A_SESSION = 4


class Turn(NamedTuple):
    """What a member learns in a turn.

    `coming`: what it is to begin with; `leaving`: what it has to release. `held`: all that it
    has, None if nothing has changed. `lost`: the group had removed it, and it has joined again.
    """

    coming: list[Partition]
    leaving: list[Partition]
    held: list[Partition] | None = None
    lost: bool = False


_NOTHING = Turn([], [])


class GroupMember:
    """A member of a group in this process; its calls come from one thread at a time."""

    def __init__(
        self,
        files: GroupDirectory,
        *,
        name: str | None,
        topics: Iterable[str],
        strategy: tuple[str, Strategy],
        session_ms: int,
        clock: Clock,
        shapes: Callable[[], Mapping[str, TopicShape]],
        topic_id: Callable[[str], int],
    ) -> None:
        self.files = files
        self.id = name or f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._topics = tuple(topics)
        self._strategy_name, self._strategy = strategy
        self._session_ms, self._clock = session_ms, clock
        self._shapes, self._topic_id = shapes, topic_id
        #: Distinguishes this member from others of its id.
        self._token = uuid.uuid4().hex
        self._member: Member | None = None
        self._lock = threading.Lock()
        self._looked_at = -float("inf")
        self._beat_at = -float("inf")
        #: The last change of the group that a turn has seen.
        self._seen = -1

    # -- a member's life ---------------------------------------------------------------------

    def join(self) -> None:
        """Join the group; InvalidMessage if the name is taken or the strategy is another one."""
        files = self.files
        files.make()
        with files.locked() as group:
            files.log.refresh(locked=True)
            group.expire(files.silent_ms(group))
            group.leave(self.id, self._token)  # an interrupt has ended the call before
            member = group.join(
                self.id,
                self._token,
                self._topics,
                session_ms=self._session_ms,
                strategy=self._strategy_name,
            )
            files.begin_beats(member)
            files.save()
        with self._lock:
            self._member = member
        self._beat_at = self._clock.monotonic()
        self._looked_at = -float("inf")

    def beat(self) -> None:
        """Send a heartbeat if it is time for one; from any thread."""
        now = self._clock.monotonic()
        with self._lock:
            member = self._member
            if member is None or (now - self._beat_at) * 1000 < self._session_ms / BEATS_A_SESSION:
                return
            self._beat_at = now
            self.files.beat(member)

    @property
    def beat_seconds(self) -> float:
        """How often `beat` is to be called."""
        return self._session_ms / BEATS_A_SESSION / 2000

    def turn(self, has: Callable[[], Iterable[Partition]] = tuple) -> Turn:
        """Take what is free and meant for this member; returns that, and what it is to release.

        `has` returns the partitions that the member has begun with. Costs one small read while
        nothing changes in the group.
        """
        self.beat()
        member = self._member
        if member is None:
            self.join()
            return Turn([], [], lost=True)
        now, files = self._clock.monotonic(), self.files
        due = (now - self._looked_at) * 1000 >= self._session_ms / BEATS_A_SESSION
        if not due and files.change() == self._seen:
            return _NOTHING
        self._looked_at = now
        shapes = self._shapes()
        with files.locked() as group:
            if not group.is_member(member.id, member.token):
                lost = True
            else:
                lost = False
                before = group.generation, group.settled
                group.expire(
                    {**files.silent_ms(group), member.id: 0}  # this is a sign of life, too
                )
                # Counts only rise, and a reader may know less than the writer.
                group.see_topics(_larger(group.shapes, shapes))
                if not group.is_settled:
                    group.settle(self._strategy)
                if group.take(member) or before != (group.generation, group.settled):
                    files.save()
                held, leaving = _pairs(group.held(member)), _pairs(group.leaving(member))
                begun = {*has(), *leaving}
                coming = [partition for partition in held if partition not in begun]
                if coming:
                    files.log.refresh(locked=True)
                self._seen = files.change()
                return Turn(coming, leaving, held)
        assert lost
        with self._lock:
            self._member = None
        self.join()
        return Turn([], [], lost=True)

    def take_turn_again(self) -> None:
        """Have the next turn return all that it should, also if nothing changes: one failed."""
        self._seen, self._looked_at = -1, -float("inf")

    def release(self, partitions: Iterable[Partition]) -> None:
        """Give partitions up; their next owner may take them."""
        member = self._member
        with self.files.locked() as group:
            if member is not None and group.is_member(member.id, member.token):
                group.release(member, _owned(partitions))
                self.files.save()

    def leave(self) -> None:
        """Leave the group; its partitions are free at once."""
        with self._lock:
            member, self._member = self._member, None
        if member is not None:
            with self.files.locked() as group:
                if group.is_member(member.id, member.token):
                    group.leave(member.id, member.token)
                    self.files.save()

    # -- positions ---------------------------------------------------------------------------

    def commit(self, positions: Mapping[Partition, int], level: Durability) -> None:
        """Record positions; MemberFenced, and nothing is recorded, unless it has all of them."""
        if not positions:
            return
        with self._committing(positions) as rows:
            log = self.files.log
            log.append(log.positions.change(self._clock.now_ms(), rows), level)

    def commit_output(
        self,
        positions: Mapping[Partition, int],
        level: Durability,
        output: Prepared,
        finish: Callable[[Buffer], None],
    ) -> BatchAck:
        """As `commit`, with output that becomes part of the store together with the positions.

        `finish` is called first with output that could not be appended before. OutputIncomplete
        if that happens to this one.
        """
        self.files.expect_output()
        with self._committing(positions) as rows:
            log = self.files.log
            finish_outputs(self.files, finish)
            data = output.encoded()
            log.append(log.positions.change(self._clock.now_ms(), rows, data), level)
            try:
                ack = output.append(in_files(level))
            except TubeStoreError as error:
                failure = OutputIncomplete(self.files.group, str(error))
                failure.taken = "yes"
                raise failure from error
            log.append(log.positions.complete(), "page_cache")
            return ack

    @contextmanager
    def _committing(self, positions: Mapping[Partition, int]) -> Iterator[dict[str, PositionRows]]:
        """Hold the group's lock, with a log that is up to date, if the partitions are its own."""
        files = self.files
        by_topic: dict[str, tuple[list[int], list[int]]] = {}
        for (topic, number), position in positions.items():
            numbers, offsets = by_topic.setdefault(topic, ([], []))
            numbers.append(number)
            offsets.append(position)
        rows = {
            topic: PositionRows(self._topic_id(topic), np.array(numbers), np.array(offsets))
            for topic, (numbers, offsets) in by_topic.items()
        }
        with files.locked() as group:
            if self._member is None:
                raise MemberFenced(files.group, self.id, "it has left the group")
            member = group.check_member(self._member.id, self._member.token)
            group.check_holder(member, {topic: each.ids for topic, each in rows.items()})
            files.log.refresh(locked=True)
            yield rows

    def committed(self, topic: str) -> Mapping[int, int]:
        """Return the positions of a topic as of the last turn that took partitions."""
        return self.files.log.positions.of(topic, self._topic_id(topic))

    def sync(self) -> None:
        """Bring what was committed to stable storage."""
        self.files.log.sync()

    @property
    def problems(self) -> list[CorruptRecord]:
        """Damage of the positions that was found."""
        return self.files.log.problems


def finish_outputs(files: GroupDirectory, finish: Callable[[Buffer], None]) -> None:
    """Append what was recorded of output and is not in its topics; under the group's lock.

    OutputIncomplete if it cannot be appended.
    """
    log = files.log
    if not log.positions.incomplete:
        return
    # Another process may have been killed before it synced the frame; the output is synced below.
    log.sync()
    try:
        for frame in log.positions.incomplete:
            finish(frame.output)
    except TubeStoreError as error:
        raise OutputIncomplete(files.group, str(error)) from error
    log.append(log.positions.complete(), "page_cache")


def _larger(
    known: Mapping[str, TopicShape], seen: Mapping[str, TopicShape]
) -> dict[str, TopicShape]:
    """Return the topics that are seen, with the counts of the larger of both."""
    found = {}
    for topic, shape in seen.items():
        other = known.get(topic, shape)
        found[topic] = TopicShape(
            max(shape.partitions, other.partitions), max(shape.stores, other.stores)
        )
    return found


def _pairs(owned: Owned) -> list[Partition]:
    return [(topic, number) for topic, ids in owned.items() for number in ids.tolist()]


def _owned(partitions: Iterable[Partition]) -> Owned:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return {topic: np.array(ids) for topic, ids in found.items()}
