"""A shard takes over files that come ready-made; the shard's part of `publish.py`.

    hold           buffers written and synced; from here on appends wait
    adopt          files that stand behind both ends are opened; nobody sees them yet
    show_adopted   readers see them
    let_go         appends go on behind them

Guards: `_flush_lock` is held from `hold` to `let_go`, by the same thread.
"""

from __future__ import annotations

from tubestore.segments.checkpoint import write_checkpoint
from tubestore.shard.double_buffer import DoubleBuffer
from tubestore.shard.mem_store import MsgMemStore


class AdoptingShard(DoubleBuffer):
    """A shard that can be stopped at its end to have files put behind it."""

    def hold(self) -> tuple[int, int]:
        """Write and sync everything, and let nothing in until `let_go`.

        Returns the ends of index and data. Whoever appends meanwhile waits; the time does not
        count for its deadline.
        """
        self._flush_lock.acquire()
        try:
            with self._append_lock:
                self._held = True
                self._take_back()
                self._close_room()
            self._flush_to(None)
            ends = self._visible
            self._commits.run(lambda: self._synced(self.files.sync, ends.data_end))
        except BaseException:
            self.let_go()
            raise
        return self.files.index.end, self.files.data.end

    def let_go(self) -> None:
        """Let appends in again."""
        with self._append_lock:
            self._held = False
            self._room.notify_all()
        self._flush_lock.release()

    def adopt(self, index: list[tuple[int, int]], data: list[tuple[int, int]]) -> None:
        """Take over files behind both ends, (start, size) in order, all synced; while held.

        An OSError fails the shard: its files are longer than it knows.
        """

        def adopt() -> int:
            try:
                self.files.adopt(index, data)
            except OSError as error:
                raise self._fail(error) from error
            return self.files.data.end

        self._commits.run(adopt)  # syncs and rolls look at the same lists

    def show_adopted(self) -> None:
        """Let readers see what was adopted."""
        with self._append_lock:
            self._visible = self.files.snapshot()
            self._main = MsgMemStore(self._visible.index_end, self._visible.data_end)

    def leave_checkpoint(self) -> None:
        """Note, while held, that everything there is on stable storage."""
        write_checkpoint(self.files, self._visible.index_end, self._visible.data_end)
