"""What can happen to the files of a store between two looks at them, step by step."""

from __future__ import annotations

from typing import Any

from tests.support.publishing import ROOT, open_store, some, stage
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import MemoryVfs

__all__ = ["ROOT", "STEPS", "History"]

STEPS = ("append", "batch", "publish", "retain", "compact", "delete", "kill", "close", "tear")

#: A data file ends twice as often as an index file.
_FILES: dict[str, Any] = {"segment_size_bytes": 250, "index_segment_size_bytes": 9 * ENTRY_SIZE}


class History:
    """A store of two topics with small files, and its writer."""

    def __init__(self) -> None:
        self.vfs = MemoryVfs()
        self._store: MessageStoreManager | None = None
        self._jobs = 0

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def step(self, name: str) -> None:
        """Let one of `STEPS` happen."""
        getattr(self, f"_{name}")()

    @property
    def _writer(self) -> MessageStoreManager:
        if self._store is None:
            self._store = open_store(self.vfs, compact_files_min=0, **_FILES)
            for topic in "ab":
                self._store.create_topic(topic, partitions=3, exist_ok=True)
        return self._store

    def _append(self) -> None:
        self._writer["a"].append(b"one", partition=1)
        self._writer["a"].flush()

    def _batch(self) -> None:
        for topic in "ab":
            self._writer[topic].append_batch({"body": [b"some"] * 4})

    def _publish(self) -> None:
        self._jobs += 1
        job = f"j{self._jobs}"
        self._writer.publish(job, stage(self.vfs, job, *some(9, partitions=(0, 1))))

    def _retain(self) -> None:
        self._writer["a"].retain(max_bytes=600)

    def _compact(self) -> None:
        self._close()
        with open_store(self.vfs, compact_files_min=0) as store:
            store.compact(files_min=2)

    def _delete(self) -> None:
        self._writer.delete_topic("b")
        self._writer.create_topic("b", partitions=3)

    def _kill(self) -> None:
        if self._store is not None:
            engine_of(self._store).abandon("killed")
            self.vfs.release_locks()
            self._store = None

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _tear(self) -> None:
        """Leave an entry without its data behind the newest index file of a topic, after a kill."""
        self._batch()
        self._kill()
        path = max(p for p in self.vfs.tree() if p.startswith(f"{ROOT}/a-0/index/"))
        file = self.vfs.open(path)
        file.pwrite(b"\0\0\0\0" + b"\x7f" * 24, file.size())
        file.close()
