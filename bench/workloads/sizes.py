"""How large a cell is: topics, partitions, bodies, skew, threads, durability, messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.layouts.capabilities import Unavailable
from bench.layouts.layout import Durability
from bench.workloads.cases import Case
from bench.workloads.payload import BODY_SIZE, Payload, Skew, standard_library

#: Rows a batch.
BATCH = 1000
MIX = "mix"
_SKEWS = ("even", "zipf")
_DURABILITIES = ("memory", "page_cache", "fsync")


@dataclass(frozen=True)
class Size:
    """The sizes of one cell; 0 messages: as many as the workload has at this scale."""

    topics: int = 1
    partitions: int = 10
    body: int | Literal["mix"] = BODY_SIZE
    skew: Skew = "even"
    threads: int = 1
    durability: Durability = "page_cache"
    batch: int = BATCH
    messages: int = 0
    #: True: on a disk, where shared memory would do, too.
    disk: bool = False

    def __post_init__(self) -> None:
        for name in ("topics", "partitions", "threads", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise Unavailable(f"{name}: {value!r} is not a positive whole number")
        if not isinstance(self.messages, int) or self.messages < 0:
            raise Unavailable(f"messages: {self.messages!r} is not a whole number from 0 on")
        if self.body != MIX and (not isinstance(self.body, int) or self.body < 1):
            raise Unavailable(f"body: {self.body!r} is neither a number of bytes nor {MIX!r}")
        if not isinstance(self.disk, bool):
            raise Unavailable(f"disk: {self.disk!r} is neither True nor False")
        for name, known in (("skew", _SKEWS), ("durability", _DURABILITIES)):
            if getattr(self, name) not in known:
                raise Unavailable(f"{name}: {getattr(self, name)!r} is none of {', '.join(known)}")

    @property
    def places(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions

    @property
    def label(self) -> str:
        """A line for people, without what is as usual."""
        parts = [f"{self.topics:,} × {self.partitions:,}"]
        if self.body != BODY_SIZE:
            parts.append("mixed bodies" if self.body == MIX else f"{self.body:,} B")
        if self.skew != "even":
            parts.append("Zipf")
        if self.threads != 1:
            parts.append(f"{self.threads} threads")
        if self.durability != "page_cache":
            parts.append(self.durability)
        if self.batch != BATCH:
            parts.append(f"batches of {self.batch:,}")
        if self.disk:
            parts.append("on a disk")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return its columns."""
        return asdict(self)

    def needs(self) -> frozenset[str]:
        """Return the capabilities that these sizes need."""
        needed = {
            "threads": self.threads > 1,
            "fsync": self.durability == "fsync",
            "sizes": self.body == MIX,
        }
        return frozenset(name for name, wanted in needed.items() if wanted)

    def with_messages(self, messages: int) -> Size:
        """Return the same with a number of messages, unless it has one."""
        return self if self.messages else replace(self, messages=messages)

    def case(self, place: Path, text: bytes) -> Case:
        """Return the case of this size in a directory."""
        return Case(
            payload=payload(text, self.body),
            place=place,
            messages=self.messages,
            topics=self.topics,
            partitions=self.partitions,
            batch=self.batch,
            threads=self.threads,
            skew=self.skew,
            durability=self.durability,
        )


def payload(text: bytes, body: int | Literal["mix"]) -> Payload:
    """Return bodies of a size, cut from a text."""
    if body == MIX:
        return Payload.of_mixed_sizes(text)
    if len(text) < body:
        text = text * -(-body // len(text))
    return Payload(text, body)


def text_of(path: Path | None) -> bytes:
    """Return the text of a file, or that of the Python standard library."""
    if path is None:
        return standard_library().text
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"--payload {path}: {error.strerror}") from error
    if not text:
        raise Unavailable(f"--payload {path}: the file is empty")
    return text
