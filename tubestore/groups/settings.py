"""Settings of a group that outlive its members: does retention wait for it, and when does it end.

    <group>/settings.json    replaced whole and durably, under the group's lock; with a digest
    <group>/configured       there once settings were given, and empty

Without either file a group has the defaults. A file that is not valid, or is gone, holds
everything: retention removes nothing, and the group does not end, until the settings are given
again.

A group that retention waits for holds, of each topic that it has a position of, every message from
its least position on. A partition of such a topic without a position counts as unread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import xxhash

from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.state_file import parse_state, state_bytes
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.groups.directory import GroupDirectory, list_groups
from tubestore.groups.membership import TopicShape
from tubestore.groups.positions_log import PositionsLog
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.names import GROUPS_DIRECTORY, store_key
from tubestore.values import Keep, whole_number

SETTINGS_FILE, GIVEN_FILE = "settings.json", "configured"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`retention_waits`: no message is removed that the group has not read.

    `expire_after_ms`: the group is deleted so long after its last member or commit; None: never.
    """

    retention_waits: bool = False
    expire_after_ms: int | None = None
    #: When they were given, ms since the epoch; 0: never.
    changed_ms: int = field(default=0, compare=False)


class Held(NamedTuple):
    """What a group keeps from retention: from which offset of each shard on; None: everything."""

    path: str
    holder: str
    offsets: Mapping[str, int] | None


def read_settings(vfs: Vfs, directory: str) -> GroupSettings:
    """Return the settings of the group with this directory; CorruptRecord if they are not valid."""
    path = join(directory, SETTINGS_FILE)
    try:
        data = vfs.read_file(path)
    except FileNotFoundError:
        if vfs.exists(join(directory, GIVEN_FILE)):
            raise CorruptRecord(path, 0, "it is missing, and the group had settings") from None
        return GroupSettings()
    try:
        found = parse_state(data)
        text = found["settings"]
        if xxhash.xxh3_64_hexdigest(text.encode()) != found["digest"]:
            raise ValueError("it does not match its digest")
        return _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(path, 0, str(error)) from error


def _parsed(given: Mapping[str, object]) -> GroupSettings:
    waits, age = given["retention_waits"], given["expire_after_ms"]
    changed = whole_number(given["changed_ms"])
    if not isinstance(waits, bool) or changed is None:
        raise ValueError("it has no settings of a group")
    expire_after_ms = whole_number(age)
    if age is not None and not expire_after_ms:
        raise ValueError("expire_after_ms is not an age")
    return GroupSettings(waits, expire_after_ms, changed)


def change_settings(
    vfs: Vfs,
    files: GroupDirectory,
    clock: Clock,
    *,
    retention_waits: bool | Keep,
    expire_after_ms: int | Keep | None,
) -> GroupSettings:
    """Set what is given, durably, and return all settings; the group is made if it is new.

    Settings that are not valid are replaced if all of them are given, else CorruptRecord.
    """
    files.make()
    with files.locked():
        with contextlib.suppress(CorruptRecord):  # then everything is held
            files.log.refresh(locked=True)
        files.log.sync()  # after a power cut retention waits for these positions, too
        if isinstance(retention_waits, Keep) or isinstance(expire_after_ms, Keep):
            known = read_settings(vfs, files.path)
        else:
            known = GroupSettings()
        if not isinstance(retention_waits, Keep):
            known = replace(known, retention_waits=retention_waits)
        if not isinstance(expire_after_ms, Keep):
            known = replace(known, expire_after_ms=expire_after_ms)
        known = replace(known, changed_ms=clock.now_ms())
        text = json.dumps(asdict(known))
        digest = xxhash.xxh3_64_hexdigest(text.encode())
        data = state_bytes({"digest": digest, "settings": text})
        files.replace(SETTINGS_FILE, data)
        if not vfs.exists(join(files.path, GIVEN_FILE)):
            files.replace(GIVEN_FILE, b"")
        return known


def held_by_groups(
    vfs: Vfs, root: str, clock: Clock, topics: Iterable[tuple[str, int, TopicShape]]
) -> list[Held]:
    """Return what groups hold of topics, which are given as (name, id, partitions)."""
    topics, held = list(topics), []
    for group in list_groups(vfs, root):
        directory = join(root, OWN_DIRECTORY, GROUPS_DIRECTORY, group)
        positions = PositionsLog(vfs, root, directory)
        try:
            if read_settings(vfs, directory).retention_waits:
                positions.refresh()
                held.append(Held(directory, f"group {group!r}", _least(positions, topics)))
        except CorruptRecord as error:
            held.append(Held(error.path, f"group {group!r} ({error})", None))
        except FileNotFoundError:
            continue  # deleted meanwhile
        finally:
            positions.close()
    return held


def _least(log: PositionsLog, topics: Iterable[tuple[str, int, TopicShape]]) -> dict[str, int]:
    """Return the least position in each shard of the topics that a group has read."""
    found = {}
    for topic, topic_id, shape in topics:
        known = log.positions.of(topic, topic_id)
        if not known:
            continue
        ids = shape.ids()
        positions = np.array([known.get(number, 0) for number in ids.tolist()], np.int64)
        for store_id in range(shape.stores):
            mine = ids // PARTITIONS_PER_STORE == store_id
            found[store_key(topic, store_id)] = int(positions[mine].min())
    return found
