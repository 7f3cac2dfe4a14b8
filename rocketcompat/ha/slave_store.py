"""A store with a log that comes from a master: RocketMQ's role SLAVE.

It reads as every store does. Puts are refused; `append_raw` takes the master's bytes, and queues,
index and shards are built from them. Delayed messages are delivered by the master alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from rocketcompat.commitlog.raw import RawIntake
from rocketcompat.files.mirror_file import MirrorFile
from rocketcompat.ha.role import refuse_controller_mode
from rocketcompat.options import MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore, opening_of
from rocketcompat.store.opening import Opened, open_to_write
from rocketcompat.store.parts import Follows, Parts
from rocketcompat.store.puts import PutPath
from tubestore.clock import Clock, SystemClock
from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore, ReadOnlyStore, documented
from tubestore.staging.placing import Spread

if TYPE_CHECKING:
    from rocketcompat.staging.pieces import StagedPiece
    from rocketcompat.staging.publish import LogPublishResult


class _NoPuts(PutPath):
    """Refuses every put."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.parts.commit_log, opened.dispatcher, opened.parts.clock)
        self._root = opened.parts.root

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise ReadOnlyStore(f"{self._root}: is a slave: its messages come from its master")

    put = append = put_columns = put_batch = put_inner_batch = _refuse


class SlaveStore(DefaultMessageStore):
    """A store that is open for the bytes of a master's log; made by `open_slave`."""

    def __init__(self, opened: Opened, *, background: bool) -> None:
        super().__init__(replace(opened, schedule=None), background=background)
        self._puts = _NoPuts(opened)
        self._intake = RawIntake(opened.parts.commit_log)

    @documented
    def append_raw(self, physical_offset: int, data: Buffer) -> int:
        """Take bytes of the master's log at their offset; returns `raw_end`. One thread calls it.

        They may end anywhere: what is not a whole record waits in memory. In the page cache on
        return. OutOfPlace for another offset than `next_raw_offset`; CorruptRecord for bytes that
        are not the records of this place; DiskFull and StoreFailed as of a put.
        """
        self._check_open()
        end = self._intake.append(physical_offset, data)
        self._dispatcher.wake()
        return end

    @property
    def next_raw_offset(self) -> int:
        """Physical offset of the next byte that `append_raw` takes."""
        return self._intake.next_offset

    @property
    def raw_end(self) -> int:
        """Physical offset below which the master's bytes are in the log's files."""
        return self._intake.end

    @documented
    def discard_raw(self) -> int:
        """Drop bytes that are not a whole record yet; returns the offset of the next byte."""
        self._check_open()
        self._intake.discard()
        return self._intake.next_offset

    @documented
    def flush_log(self) -> None:
        """Bring everything below `raw_end` to stable storage."""
        self._check_open()
        self._log.flush()

    @documented
    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedPiece | Mapping[str, Any]],
        *,
        threads: int | None = None,
        query: str | None = None,
        spread: Spread | None = None,
    ) -> LogPublishResult:
        """Refuse: jobs publish into the master."""
        self._check_open()
        raise ReadOnlyStore(f"{self.root}: is a slave: its messages come from its master")

    def _close_parts(self) -> None:
        if self._log.refusals.failed is None:
            self._intake.discard()
        super()._close_parts()


@dataclass(frozen=True, slots=True)
class SlaveRoot:
    """A root for a slave's store, and what it is opened with."""

    root: str
    config: MessageStoreConfig
    vfs: Vfs
    clock: Clock

    @classmethod
    def of(
        cls, root: str | os.PathLike[str], config: MessageStoreConfig | None = None,
        vfs: Vfs | None = None, clock: Clock | None = None,
    ) -> SlaveRoot:  # fmt: skip
        """Return a root; NotAStore for a path that cannot be one."""
        path, disk = opening_of(root, vfs)
        refuse_controller_mode(disk, path)
        return cls(path, config or MessageStoreConfig(), disk, clock or SystemClock())

    @property
    def has_log(self) -> bool:
        """True if the log has a file."""
        return any(
            size
            for directory in self.config.commit_log_directories(self.root)
            for _, is_directory, size in self.vfs.entries(directory)
            if not is_directory
        )

    def open(
        self, master: str, *, begin: int | None = None, take_over: bool = False,
        background: bool = True, comes_again: bool = True,
    ) -> SlaveStore:  # fmt: skip
        """Open the store for the log of the master at this address.

        `begin`: the physical offset at which the log of an empty root begins. `take_over`: the root
        has a log that was not begun here, such as a real slave's. NotAStore without it.
        `comes_again`: the log is cut at damage that a power cut left in what was not synced, since
        the master sends it again; without it what follows the damage stays.
        """
        follows = Follows(master, begin, take_over, comes_again)
        parts = Parts(self.root, self.config, self.vfs, self.clock, writable=True, follows=follows)
        return SlaveStore(open_to_write(parts), background=background)

    def promote(self) -> int:
        """Make the mirror a store of its own; returns the log's end.

        The store is recovered and closed first. Records that follow damage stay: no master sends
        them again. NotAStore for a root that is not a mirror.
        """
        note = MirrorFile(self.vfs, self.root)
        master = note.read()
        if master is None:
            raise NotAStore(self.root, "is not a mirror")
        with self.open(master, background=False, comes_again=False) as store:
            end = store.max_physical_offset
        note.remove()
        return end
