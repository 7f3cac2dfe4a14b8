"""Messages of the journal of an earlier process that a shard may lack.

After a kill a shard gets them when it is opened, and it is opened when it is used: to open a store
does not mean to open ten thousand shards. The background opens the others, some at a time.

Guards: single steps on a dict, which any thread may take; shards are opened under the lock of
their topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import TubeStoreError
from tubestore.journal.chosen_shards import JournalledShard
from tubestore.journal.root_journal import JournalPart

log = logger(__name__)
#: How long the background opens shards before it lets other tasks go on.
_TURN_SECONDS = 0.05


class LeftMessages:
    """Parts of a journal by the name of the shard that may lack them.

    `open_shard` opens a shard, which gives the shard its parts. It returns None if the shard's
    topic has gone, and raises TubeStoreError.
    """

    def __init__(
        self,
        parts: Iterable[JournalPart] = (),
        open_shard: Callable[[str], JournalledShard | None] = lambda name: None,
    ) -> None:
        self._parts: dict[str, list[JournalPart]] = {}
        for part in parts:
            self._parts.setdefault(part.shard, []).append(part)
        self._open_shard = open_shard

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parts))

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def of(self, name: str) -> Sequence[JournalPart]:
        """Return what a shard may lack."""
        return self._parts.get(name, ())

    def was_given(self, name: str) -> None:
        """Forget the parts of a shard: its files have them now."""
        self._parts.pop(name, None)

    def open_all(self) -> None:
        """Open every shard that may lack something; raises the first failure."""
        for name in list(self._parts):
            self._open(name)

    def open_each(self) -> list[TubeStoreError]:
        """Open every shard that may lack something; returns the failures."""
        problems = []
        for name in list(self._parts):
            try:
                self._open(name)
            except TubeStoreError as error:
                problems.append(error)
        return problems

    def open_some(self, clock: Clock) -> None:
        """Open and sync some shards; those that cannot be are tried again."""
        begun = clock.monotonic()
        for name in list(self._parts):
            try:
                shard = self._open(name)
                if shard is not None:
                    shard.sync_written()
            except TubeStoreError as error:
                log.warning("the journal stays: %s", error)
            if clock.monotonic() - begun >= _TURN_SECONDS:
                return

    def _open(self, name: str) -> JournalledShard | None:
        shard = self._open_shard(name)
        self.was_given(name)
        return shard
