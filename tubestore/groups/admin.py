"""Groups from outside: what each has read and has not, and how its positions are set anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os.path import dirname
from typing import Literal

import numpy as np

from tubestore.clock import Clock, Time, checked_time_ms
from tubestore.core.doors import logger
from tubestore.core.old_paths import FormerName
from tubestore.core.paths import join
from tubestore.core.trees import remove_tree
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    TubeStoreError,
    UnknownTopic,
    listed,
)
from tubestore.groups.assignment import Partition
from tubestore.groups.consumer import ConsumedStore, check_within
from tubestore.groups.directory import (
    HEARTBEATS_FILE,
    GroupDirectory,
    check_group_name,
    list_groups,
)
from tubestore.groups.exchange import GroupPositions
from tubestore.groups.feed import ShardFeed, feeds_of
from tubestore.groups.membership import Membership, TopicShape
from tubestore.groups.positions import PositionRows, Positions
from tubestore.groups.settings import GroupSettings, read_settings
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading import positions as places
from tubestore.reading.view import ShardView

log = logger(__name__)

#: What a group is called while it is removed.
DELETED = ".deleted"
_LONG_AGO = -(1 << 63)
#: Where a group is set: at the first message that is kept, behind the last one, or at an offset.
Place = int | Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class GroupMemberRow:
    """A member of a group; `silent_ms` since its last heartbeat, None without one."""

    id: str
    topics: tuple[str, ...]
    partitions: int
    session_ms: int
    silent_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition of a group's topics; no `position` and no `lag` before the first commit.

    `waiting_since_ms`: when its first message behind the position was received; None without one.
    """

    topic: str
    partition: int
    member: str | None
    position: int | None
    end: int
    lag: int | None
    waiting_since_ms: int | None
    waiting_since = FormerName("waiting_since_ms")


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as it is recorded; `committed_ms`: the time of its last commit, 0 without one.

    `settings`: None if they are damaged.
    """

    name: str
    strategy: str
    generation: int
    committed_ms: int
    members: list[GroupMemberRow]
    partitions: list[GroupPartition]
    settings: GroupSettings | None
    problems: list[TubeStoreError]


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """A group that has expired; `used_ms`: its last heartbeat, commit or change of settings."""

    name: str
    used_ms: int
    positions: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A position that is set anew; None: the partition had none."""

    topic: str
    partition: int
    before: int | None
    after: int


def describe(vfs: Vfs, files: GroupDirectory, source: ConsumedStore) -> GroupDescription:
    """Return members, positions and lag of a group; InvalidMessage if there is none."""
    _check_there(files)
    group = files.peek()
    problems: list[TubeStoreError] = []
    with contextlib.suppress(CorruptRecord):  # it is among the problems
        files.read_positions()
    problems += files.log.problems
    settings = None
    try:
        settings = read_settings(vfs, files.path)
    except CorruptRecord as error:
        problems.append(error)
    silent = files.silent_ms(group)
    members = [
        GroupMemberRow(
            member.id,
            member.topics,
            sum(map(len, group.held(member).values())),
            member.session_ms,
            None if member.id not in silent else int(silent[member.id]),
        )
        for member in sorted(group.members.values(), key=lambda member: member.id)
    ]
    positions = files.log.positions
    rows = _partitions(group, positions, source)
    return GroupDescription(
        files.group,
        group.strategy,
        group.generation,
        positions.time_ms,
        members,
        rows,
        settings,
        problems,
    )


def _check_there(files: GroupDirectory) -> None:
    if not files.exists():
        raise InvalidMessage(
            f"no group {files.group!r} in this store; there are: {listed(files.groups()) or 'none'}"
        )


def _partitions(
    group: Membership, positions: Positions, source: ConsumedStore
) -> list[GroupPartition]:
    owners: dict[Partition, str] = {
        (topic, number): member.id
        for member in group.members.values()
        for topic, ids in group.held(member).items()
        for number in ids.tolist()
    }
    shapes = source.shapes()
    wanted = {topic for topic in {*positions.topics(), *group.shapes} if topic in shapes}
    rows = []
    for topic in sorted(wanted):
        known = positions.of(topic, source.topic_id(topic))
        every = ((topic, number) for number in shapes[topic].ids().tolist())
        for key, numbers in feeds_of(every).items():
            view = source.view(*key)
            feed = ShardFeed(*key)
            for number in numbers:
                if number in known:
                    feed.add(number, known[number])
            lags = {} if view is None else feed.unread(view)
            end = 0 if view is None else view.index_end
            rows += [
                GroupPartition(
                    topic,
                    number,
                    owners.get((topic, number)),
                    known.get(number),
                    end,
                    lags.get(number, 0) if number in known else None,
                    _received(view, number, known[number]) if lags.get(number) else None,
                )
                for number in numbers
            ]
    return rows


def _received(view: ShardView | None, number: int, position: int) -> int | None:
    """Return when the first message of a partition from a position on was received."""
    if view is None:
        return None
    start = max(position, view.index_start)
    found = places.first_from(view.sources(start), number, start, _LONG_AGO)
    return None if found is None else found.time


def reset(
    files: GroupDirectory,
    source: ConsumedStore,
    clock: Clock,
    to: Place | None,
    time: Time | None,
    topics: Iterable[str] | None,
    *,
    dry_run: bool,
) -> list[Moved]:
    """Set the positions of a group anew, durably; returns what moves (would move).

    InvalidMessage while members live: they would commit over it.
    """
    if (to is None) == (time is None):
        raise InvalidMessage("a group is set to a place or to a time: give one of them")
    at = None if time is None else checked_time_ms(time, clock=clock)
    if dry_run:
        _check_there(files)
    else:
        files.make()
    lost = False
    try:
        files.read_positions()
    except CorruptRecord:
        if topics is None:
            raise
        lost = True
    known = files.log.positions.topics()
    shapes = source.shapes()
    wanted: dict[str, dict[int, int]] = {}
    for topic in sorted(known if topics is None else topics):
        if topic in shapes:
            wanted[topic] = {
                number: _place(source.view(topic, number // PARTITIONS_PER_STORE), number, to, at)
                for number in shapes[topic].ids().tolist()
            }
        elif topics is not None:  # else it was deleted
            raise UnknownTopic(topic)
    return _set(files, source, clock, wanted, dry_run=dry_run, anew=lost)


def commit(
    files: GroupDirectory, source: ConsumedStore, clock: Clock, positions: Mapping[Partition, int]
) -> list[Moved]:
    """Set positions of a group without members, durably; returns what moves.

    InvalidMessage, before anything is set, for topics and partitions that are not there, and while
    members live; OffsetOutOfRange beyond the end of a shard.
    """
    shapes = source.shapes()
    wanted: dict[str, dict[int, int]] = {}
    for (topic, number), position in positions.items():
        _check_partition(files.group, shapes, topic, [number])
        wanted.setdefault(topic, {})[number] = position
    check_within(source, positions)
    _check_no_member(files, files.peek())  # also if nothing moves
    files.make()
    files.read_positions()
    return _set(files, source, clock, wanted, dry_run=False)


def set_back(
    files: GroupDirectory,
    source: ConsumedStore,
    clock: Clock,
    is_synced: Callable[[str, int, int], bool],
) -> list[Moved]:
    """Record the end, durably, in place of positions that are beyond it; returns what moves.

    A kill or a power cut took messages that had been consumed; what is appended next gets their
    offsets, and the group would pass it. Called before anything is appended. `is_synced` returns
    whether a shard (topic, number) had been synced up to a position: such a shard is not opened.
    """
    with files.locked():
        files.log.refresh(locked=True)
        moved: list[Moved] = []
        shapes, known = source.shapes(), files.log.positions
        for topic in known.topics():
            if topic not in shapes:
                continue
            offsets = known.of(topic, source.topic_id(topic))
            for (_, store_id), numbers in feeds_of((topic, n) for n in offsets).items():
                if is_synced(topic, store_id, max(offsets[number] for number in numbers)):
                    continue
                view = source.view(topic, store_id)
                end = 0 if view is None else view.index_end
                beyond = [number for number in numbers if offsets[number] > end]
                moved += [Moved(topic, number, offsets[number], end) for number in beyond]
        if moved:
            wanted: dict[str, dict[int, int]] = {}
            for each in moved:
                wanted.setdefault(each.topic, {})[each.partition] = each.after
            files.log.append(known.change(clock.now_ms(), _rows(source, wanted)), "fsync")
    return moved


def _check_partition(
    group: str, shapes: Mapping[str, TopicShape], topic: str, numbers: Iterable[int]
) -> None:
    if topic not in shapes:
        raise InvalidMessage(f"group {group!r}: no topic {topic!r} in this store")
    wanted = [*numbers]
    missing = np.flatnonzero(shapes[topic].places(np.array(wanted)) < 0)
    if len(missing):
        number = wanted[missing[0]]
        raise InvalidMessage(f"group {group!r}: topic {topic!r} has no partition {number}")


def _set(
    files: GroupDirectory,
    source: ConsumedStore,
    clock: Clock,
    wanted: Mapping[str, Mapping[int, int]],
    *,
    dry_run: bool,
    anew: bool = False,
) -> list[Moved]:
    """Record positions durably; returns those that differ from the present ones."""
    present = files.log.positions
    moved = [
        Moved(topic, number, known.get(number), after)
        for topic, positions in wanted.items()
        for known in [present.of(topic, source.topic_id(topic))]
        for number, after in positions.items()
        if known.get(number) != after
    ]
    if dry_run or not (moved or anew):
        return moved
    with files.locked() as group:
        _check_no_member(files, group)
        if anew:
            files.log.begin_anew()
        files.log.refresh(locked=True)
        change = files.log.positions.change(clock.now_ms(), _rows(source, wanted))
        files.log.append(change, "fsync")
    return moved


def _rows(
    source: ConsumedStore, wanted: Mapping[str, Mapping[int, int]]
) -> dict[str, PositionRows]:
    return {
        topic: PositionRows(
            source.topic_id(topic), np.array([*positions]), np.array([*positions.values()])
        )
        for topic, positions in wanted.items()
    }


def positions_of(groups: Iterable[GroupDirectory]) -> GroupPositions:
    """Return the positions of some groups; InvalidMessage for one that is not there."""
    found = {}
    for files in groups:
        _check_there(files)
        files.read_positions()
        found[files.group] = files.log.positions.topics()
    return found


def import_positions(
    given: GroupPositions,
    directory_of: Callable[[str], GroupDirectory],
    source: ConsumedStore,
    clock: Clock,
    *,
    dry_run: bool,
) -> dict[str, list[Moved]]:
    """Set positions durably, the nearest that there are; returns what moves, by group.

    InvalidMessage, before anything is set, for topics and partitions that are not there, and for a
    group with a living member.
    """
    shapes = source.shapes()
    wanted: dict[str, dict[str, dict[int, int]]] = {}
    for group, topics in given.items():
        check_group_name(group)
        wanted[group] = {}
        for topic, positions in topics.items():
            _check_partition(group, shapes, topic, positions)
            wanted[group][topic] = {
                number: _place(source.view(topic, number // PARTITIONS_PER_STORE), number, at, None)
                for number, at in positions.items()
            }
    groups = [(directory_of(group), topics) for group, topics in wanted.items()]
    for files, _ in groups:
        _check_no_member(files, files.peek())
    moved = {}
    for files, topics in groups:
        if not dry_run:
            files.make()
        files.read_positions()
        moved[files.group] = _set(files, source, clock, topics, dry_run=dry_run)
    return moved


def _place(view: ShardView | None, number: int, to: Place | None, at: int | None) -> int:
    if view is None:
        return 0
    if at is not None:
        found = places.first_from(view.sources(view.index_start), number, view.index_start, at)
        return view.index_end if found is None else found.offset
    if to == "first":
        return view.index_start
    if to == "last":
        return view.index_end
    assert isinstance(to, int)
    return min(max(to, view.index_start), view.index_end)


def delete(vfs: Vfs, root: str, files: GroupDirectory) -> None:
    """Remove a group with its positions; InvalidMessage while members live.

    Also while output of the group is not in its topics yet: only its log has it.
    """
    _check_there(files)
    with files.locked() as group:
        _check_no_member(files, group)
        with contextlib.suppress(CorruptRecord):
            if files.read_positions().incomplete:
                raise InvalidMessage(
                    f"group {files.group!r} has output that is not in its topics yet; open the"
                    " store for writing, which appends it"
                )
        _take_away(vfs, files)
    _remove(vfs, root, files)


def _take_away(vfs: Vfs, files: GroupDirectory) -> None:
    """Remove a group in one step, under its lock.

    What a crash leaves of it has a name of its own, and goes with the next deletion.
    """
    gone = join(dirname(files.path), DELETED)
    if vfs.exists(gone):
        remove_tree(vfs, gone)
    vfs.rename(files.path, gone)


def _remove(vfs: Vfs, root: str, files: GroupDirectory) -> None:
    """Remove the files of a group that was taken away."""
    files.close()
    place = dirname(files.path)
    vfs.sync_directory(place)
    remove_tree(vfs, join(place, DELETED))


def expire(
    vfs: Vfs, root: str, clock: Clock, after_ms: int | None, *, dry_run: bool
) -> list[ExpiredGroup]:
    """Delete the groups that have not been used for as long as their settings give.

    `after_ms` counts in place of the settings. Returns those that went, or with `dry_run` would.
    A group with a living member, or with damaged settings or positions, stays.
    """
    found = []
    for name in list_groups(vfs, root):
        files = GroupDirectory(vfs, root, name, clock)
        try:
            gone = _expire(vfs, root, files, clock, after_ms, dry_run=dry_run)
        except (CorruptRecord, FileNotFoundError) as error:
            log.warning("group %r does not expire: %s", name, error)
            continue
        finally:
            files.close()
        if gone is not None:
            found.append(gone)
    return found


def _expire(
    vfs: Vfs,
    root: str,
    files: GroupDirectory,
    clock: Clock,
    after_ms: int | None,
    *,
    dry_run: bool,
) -> ExpiredGroup | None:
    limit = read_settings(vfs, files.path).expire_after_ms if after_ms is None else after_ms
    if limit is None or used_ms(vfs, files) > clock.now_ms() - limit:
        return None
    if dry_run:
        return None if _living(files, files.peek()) else _as_expired(vfs, files)
    with files.locked() as group:
        if _living(files, group) or used_ms(vfs, files) > clock.now_ms() - limit:
            return None  # it is used again
        if files.log.positions.incomplete:
            return None  # only its log has this output
        gone = _as_expired(vfs, files)
        _take_away(vfs, files)
    _remove(vfs, root, files)
    return gone


def _as_expired(vfs: Vfs, files: GroupDirectory) -> ExpiredGroup:
    count = len(files.log.positions)
    return ExpiredGroup(files.group, used_ms(vfs, files), count)


def used_ms(vfs: Vfs, files: GroupDirectory) -> int:
    """Return when a group was used last: by a heartbeat, a commit, or new settings; 0 for never."""
    times = [files.read_positions().time_ms, read_settings(vfs, files.path).changed_ms]
    with contextlib.suppress(FileNotFoundError):
        times.append(vfs.modified_ms(join(files.path, HEARTBEATS_FILE)))
    return max(times)


def _living(files: GroupDirectory, group: Membership) -> list[str]:
    """Return the ids of the members with a session that has not ended."""
    silent = files.silent_ms(group)
    return sorted(
        member.id
        for member in group.members.values()
        if silent.get(member.id, float("inf")) <= member.session_ms
    )


def _check_no_member(files: GroupDirectory, group: Membership) -> None:
    living = _living(files, group)
    if living:
        names = ", ".join(living)
        raise InvalidMessage(f"group {files.group!r} has living members: {names}; stop them first")
