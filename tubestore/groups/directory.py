"""The files of one group, and the lock under which they change.

    <root>/.tubestore/groups/<group>/lock              held for one change (flock)
    <root>/.tubestore/groups/<group>/members.json      members, targets, holders
    <root>/.tubestore/groups/<group>/heartbeats        when each member was last heard of
    <root>/.tubestore/groups/<group>/settings.json     `settings.py`
    <root>/.tubestore/groups/<group>/positions-….log   `positions_log.py`
    <root>/.tubestore/groups/<group>/output            empty; there if the log may have output

Nothing else of a store is written. `members.json` and `heartbeats` mean something only while the
machine runs: they are not synced, and after another boot all members are gone. The same holds if
`members.json` is damaged; then the members join again.

A heartbeat is one write of 16 bytes: the digest of the member's token, and the machine's monotonic
clock in ms. The first 16 bytes of the file have the number of the last change of `members.json`, so
that a member that polls reads 8 bytes and no JSON.

| crash | what the next process finds |
| --- | --- |
| after a heartbeat of a member that did not join | a slot that no member has; it is given again |
| before `members.json` is replaced | the old members |
| after it, before the number of the change | both differ; the next holder of the lock corrects it |
"""

from __future__ import annotations

import errno
import json
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import xxhash

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.state_file import parse_state, state_bytes
from tubestore.core.trees import sync_names
from tubestore.core.vfs import Vfs, VfsFile, VfsLock
from tubestore.errors import (
    CorruptRecord,
    InvalidName,
    NotAStore,
    ReadOnlyStore,
    StoreBusy,
    TubeStoreError,
)
from tubestore.groups.membership import Member, Membership
from tubestore.groups.positions import Positions
from tubestore.groups.positions_log import PositionsLog
from tubestore.record.names import GROUPS_DIRECTORY

log = logger(__name__)

LOCK_FILE = "lock"
MEMBERS_FILE = "members.json"
HEARTBEATS_FILE = "heartbeats"
OUTPUT_FILE = "output"
GROUP_LENGTH_MAX = 200
#: How long a change waits for another process's change, in seconds.
LOCK_TIMEOUT = 10.0
_GROUP = re.compile(r"[A-Za-z0-9_%|.-]+")
_BEAT = struct.Struct(">8sq")
_CHANGE = struct.Struct(">q8x")
_WAIT_FIRST, _WAIT_MOST = 0.0002, 0.005
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


def check_group_name(group: str) -> str:
    """Return the name of a group, or raise InvalidName if a directory cannot carry it."""
    if not isinstance(group, str) or not group:
        raise InvalidName(str(group), "a group needs a name")
    if len(group) > GROUP_LENGTH_MAX:
        raise InvalidName(group, f"longer than {GROUP_LENGTH_MAX} characters")
    if not _GROUP.fullmatch(group) or group.startswith("."):
        raise InvalidName(group, "only A-Z a-z 0-9 _ - % | . and not . first")
    return group


def list_groups(vfs: Vfs, root: str) -> list[str]:
    """Return the names of the groups of a store, sorted."""
    place = join(root, OWN_DIRECTORY, GROUPS_DIRECTORY)
    found = [name for name, is_directory, _ in vfs.entries(place) if is_directory]
    return [name for name in found if not name.startswith(".")]  # one that is being deleted


class GroupDirectory:
    """One group's files; all members of a process share one. Thread-safe under `locked`."""

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        group: str,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._vfs, self._root, self._clock, self._sleep = vfs, root, clock, sleep
        self.group = check_group_name(group)
        self.path = join(root, OWN_DIRECTORY, GROUPS_DIRECTORY, group)
        self.log = PositionsLog(vfs, root, self.path)
        #: Held with the group's lock; heartbeats do not wait for it.
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self._heartbeats: VfsFile | None = None
        #: The membership as it was read or saved last, and the number of its change.
        self._membership = Membership(group)
        self._change = -1
        #: Damage of `members.json` that was met.
        self.problems: list[TubeStoreError] = []

    def groups(self) -> list[str]:
        """Return the names of the store's groups."""
        return list_groups(self._vfs, self._root)

    def exists(self) -> bool:
        """Return True if the group has files."""
        return self._vfs.exists(self.path)

    def make(self) -> None:
        """Make the group's directory; ReadOnlyStore where nothing can be written.

        NotAStore on a file system of another machine: locks and clocks are those of one.
        """
        if self._heartbeats is not None and not self._heartbeats.is_current():
            self.close()  # the group was deleted
            self._change = -1
        if self.exists():
            return
        try:
            self._vfs.make_directories(self.path)
        except OSError as error:
            raise self._refused(error) from error
        file_system = self._vfs.file_system(self.path)
        try:
            kind = file_system.network_kind()
        finally:
            file_system.close()
        if kind:
            self._vfs.remove_directory(self.path)
            raise NotAStore(
                self._root,
                f"it is on a network file system ({kind}), and groups need the locks and the clock"
                " of one machine; choose partitions by hand: store.consumer(None, {topic: [ids]})",
            )
        sync_names(self._vfs, self.path, self._root)

    def _refused(self, error: OSError) -> OSError | ReadOnlyStore:
        """Return the error to raise: of a place where nothing can be written, what to do."""
        if error.errno not in _NOT_WRITABLE:
            return error
        return ReadOnlyStore(
            f"{self._root}: nothing can be written for group {self.group!r} ({error.strerror});"
            " choose partitions by hand: store.consumer(None, {topic: [ids]})"
        )

    def read_positions(self) -> Positions:
        """Return the positions as they are now; CorruptRecord if they are lost.

        Not while a thread of this process changes them.
        """
        with self._lock:
            self.log.refresh()
            return self.log.positions

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file of the group; durable on return, with its directories' names."""
        self._vfs.replace_file(join(self.path, name), data)
        sync_names(self._vfs, self.path, self._root)

    def expect_output(self) -> None:
        """Record durably that the log may have output, so that an opening reads it."""
        if not self.may_have_output:
            self.replace(OUTPUT_FILE, b"")

    @property
    def may_have_output(self) -> bool:
        """True if the log may have output that is not in its topics."""
        return self._vfs.exists(join(self.path, OUTPUT_FILE))

    # -- the lock ----------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[Membership]:
        """Hold the group's lock; yields the membership as it is now.

        StoreBusy if another process holds the lock for more than `LOCK_TIMEOUT`.
        """
        with self._lock:
            held = self._take_lock()
            try:
                self._read_members()
                yield self._membership
            except BaseException:
                self._change = -1  # it may have been changed without being saved
                raise
            finally:
                held.release()

    def _take_lock(self) -> VfsLock:
        path = join(self.path, LOCK_FILE)
        wait, waited = _WAIT_FIRST, 0.0
        while True:
            try:
                return self._vfs.lock(path, kind="flock")
            except BlockingIOError as error:
                if waited >= LOCK_TIMEOUT:
                    raise StoreBusy(
                        f"group {self.group!r}: another process has held {path} for"
                        f" {LOCK_TIMEOUT:.0f} s; is it stopped?"
                    ) from error
            except OSError as error:
                raise self._refused(error) from error
            self._sleep(wait)
            waited += wait
            wait = min(2 * wait, _WAIT_MOST)

    # -- members -----------------------------------------------------------------------------

    def change(self) -> int:
        """Return the number of the last change of members or their partitions; one small read."""
        data = self._beats().pread(_CHANGE.size, 0)
        return int(_CHANGE.unpack(data)[0]) if len(data) == _CHANGE.size else 0

    def peek(self) -> Membership:
        """Return the members as they are recorded, without the lock; not to be changed."""
        try:
            data = self._vfs.read_file(join(self.path, MEMBERS_FILE))
            return self._parsed(data)[0]
        except (FileNotFoundError, CorruptRecord):
            return Membership(self.group)

    def _read_members(self) -> None:
        """Read `members.json` under the lock, unless it is as it was read last."""
        recorded = self.change()
        if self._change == recorded and self._change >= 0:
            return
        try:
            data = self._vfs.read_file(join(self.path, MEMBERS_FILE))
            self._membership, self._change = self._parsed(data)
        except FileNotFoundError:
            self._membership, self._change = Membership(self.group), 0
        except CorruptRecord as error:
            log.warning("%s; its members join again", error)
            self.problems.append(error)
            self._membership, self._change = Membership(self.group), recorded
        if self._change != recorded:
            self._beats().pwrite(_CHANGE.pack(self._change), 0)

    def _parsed(self, data: bytes) -> tuple[Membership, int]:
        """Return membership and number of the change; no members of another boot."""
        path = join(self.path, MEMBERS_FILE)
        try:
            found = parse_state(data)
            text = found["members"]
            if _digest(text) != found["digest"]:
                raise ValueError("it does not match its digest")
            content = json.loads(text)
            change = int(content["change"])
            membership = Membership.of_json(content["membership"])
            boots = {str(content["boot_id"]), self._vfs.boot_id()}
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(path, 0, str(error)) from error
        if len(boots) > 1 and not any(boot.startswith("pid-") for boot in boots):
            fresh = Membership(self.group, membership.strategy)
            fresh.generation = fresh.settled = membership.generation + 1
            return fresh, change
        return membership, change

    def save(self) -> None:
        """Write the membership that `locked` has yielded, under the lock."""
        change = max(self._change, 0) + 1
        text = json.dumps(
            {
                "change": change,
                "boot_id": self._vfs.boot_id(),
                "membership": self._membership.as_json(),
            }
        )
        data = state_bytes({"digest": _digest(text), "members": text})
        self._vfs.replace_file(join(self.path, MEMBERS_FILE), data, sync=False)
        self._change = change
        self._beats().pwrite(_CHANGE.pack(change), 0)

    # -- heartbeats --------------------------------------------------------------------------

    def begin_beats(self, member: Member) -> None:
        """Take the slot of a member that joins, with its first heartbeat; under the lock."""
        now = int(self._clock.monotonic() * 1000)
        self._beats().pwrite(_BEAT.pack(_mark(member), now), self._place(member))

    def beat(self, member: Member) -> None:
        """Record that a member lives, unless another one has its slot by now."""
        mark = _mark(member)
        if self._beats().pread(len(mark), self._place(member)) == mark:
            self.begin_beats(member)

    def silent_ms(self, membership: Membership) -> dict[str, float]:
        """Return for each member how long ago its last heartbeat was; none of those without one.

        A heartbeat in the future is from before the machine started.
        """
        now = int(self._clock.monotonic() * 1000)
        data = b""
        with suppress(FileNotFoundError):
            data = self._vfs.read_file(join(self.path, HEARTBEATS_FILE))
        found: dict[str, float] = {}
        for member in membership.members.values():
            at = self._place(member)
            if at + _BEAT.size <= len(data):
                mark, beat = _BEAT.unpack_from(data, at)
                if mark == _mark(member) and beat <= now + 1:
                    found[member.id] = now - beat
        return found

    @staticmethod
    def _place(member: Member) -> int:
        return _CHANGE.size + _BEAT.size * member.slot

    def _beats(self) -> VfsFile:
        """Return the file of heartbeats, made if it is missing."""
        with self._opening:
            if self._heartbeats is None:
                path = join(self.path, HEARTBEATS_FILE)
                try:
                    self._heartbeats = self._vfs.open(path, create=not self._vfs.exists(path))
                except FileExistsError:  # another process has made it meanwhile
                    self._heartbeats = self._vfs.open(path)
            return self._heartbeats

    def close(self) -> None:
        """Give the descriptors back; harmless when repeated."""
        with self._lock, self._opening:
            self.log.close()
            if self._heartbeats is not None:
                self._heartbeats.close()
                self._heartbeats = None


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _mark(member: Member) -> bytes:
    """Return what a member's heartbeats begin with."""
    return xxhash.xxh3_64_digest(member.token.encode())
