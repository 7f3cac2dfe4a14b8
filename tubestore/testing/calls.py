"""One call that changes a disk, as a journal keeps it and a simulated disk does it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal[
    "create",
    "make",
    "pwrite",
    "truncate",
    "sync",
    "rename",
    "link",
    "remove",
    "sync_directory",
    "sync_file_system",
]


class Call(NamedTuple):
    """One mutating call, with the number of the file it meant (names change, numbers do not)."""

    kind: Kind
    path: str
    file: int = 0
    position: int = 0  #: of a pwrite; the new size of a truncate
    data: bytes = b""
    target: str = ""  #: of a rename or a link
    ms: int = 0

    def __str__(self) -> str:
        if self.kind == "pwrite":
            return f"pwrite({self.path}, {len(self.data)} bytes at {self.position})"
        if self.kind == "truncate":
            return f"truncate({self.path}, {self.position})"
        return f"{self.kind}({self.path}{', ' if self.target else ''}{self.target})"
