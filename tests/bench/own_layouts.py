"""Layouts as a caller could write them, right and wrong, for the tests of the laboratory."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any


class Lists:
    """Keeps messages in memory, and a file with their number, so that there is something to see."""

    name = "lists"
    capabilities = frozenset({"append", "batch", "read"})

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: str) -> None:
        self._kept: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        (root / "file").write_bytes(bytes(4096))

    def append(self, topic: int, partition: int, body: bytes) -> None:
        self._kept[topic, partition].append(body)

    def append_batch(self, batch: Any) -> None:
        for row in batch.to_pylist():
            self.append(row["topic"], row["partition"], row["body"])

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: Any, limit: int, *, lean: bool
    ) -> tuple[list[bytes], int | None]:
        kept, first = self._kept[topic, partition], position or 0
        end = first + limit
        return kept[first:end], end if end < len(kept) else None

    def bodies(self, rows: list[bytes]) -> list[bytes]:
        return rows

    def close(self) -> None:
        pass


class Forgetful(Lists):
    """Gives back one message less than it took."""

    name = "forgetful"

    def read(self, *arguments: Any, **named: Any) -> tuple[list[bytes], int | None]:
        rows, position = super().read(*arguments, **named)
        return rows[:-1], position


class Stuck(Lists):
    """Never comes back from a flush."""

    name = "stuck"

    def flush(self) -> None:
        time.sleep(600)


class Greedy(Lists):
    """Takes much memory, and then as much time as it is given."""

    name = "greedy"

    def flush(self) -> None:
        self._much = bytes(b"x" * (300 << 20))
        time.sleep(600)


class Broken(Lists):
    """Fails."""

    name = "broken"

    def append(self, topic: int, partition: int, body: bytes) -> None:
        raise KeyError("no such drawer")


class Parent(Lists):
    """Starts a process and does not end it."""

    name = "parent"

    def __init__(self, root: Path, **sizes: Any) -> None:
        super().__init__(root, **sizes)
        left = subprocess.Popen(["sleep", "600"])
        _note(root, left.pid)


def _note(root: Path, pid: int) -> None:
    with (root.parents[1] / "children").open("a") as file:
        file.write(f"{pid}\n")


class Runaway(Lists):
    """Starts a process in a session of its own, and one whose parent ends at once."""

    name = "runaway"

    def __init__(self, root: Path, **sizes: Any) -> None:
        super().__init__(root, **sizes)
        _note(root, subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        parent = os.fork()
        if parent == 0:
            os.setsid()
            _note(root, subprocess.Popen(["sleep", "600"]).pid)
            os._exit(0)
        os.waitpid(parent, 0)


class Talkative(Lists):
    """Prints."""

    name = "talkative"

    def flush(self) -> None:
        print("a word of the layout's", flush=True)


class NamedAsAPath(Lists):
    """Would have the directory of its name replaced."""

    name = "/tmp"


class Forgets(Lists):
    """Keeps what its first store was given, and nothing of any later one."""

    name = "forgets"
    _stores = 0

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: str) -> None:
        super().__init__(root, topics=topics, partitions=partitions, durability=durability)
        Forgets._stores += 1
        self._forgets = Forgets._stores > 1

    def append(self, topic: int, partition: int, body: bytes) -> None:
        if not self._forgets:
            super().append(topic, partition, body)
