"""What is stored: pieces of real text that every machine has, the Python standard library.

A text of the caller's may take its place; bodies have one size, or a mix of sizes.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

BODY_SIZE = 1024
TEXT_BYTES = 4 << 20
SEED = 20_261_121
Skew = Literal["even", "zipf"]
#: A mix of sizes: half of the bodies are below 512 bytes, one of a hundred is above 8 KiB.
MIX_MEDIAN, MIX_SIGMA, MIX_LEAST, MIX_MOST = 512, 1.2, 16, 65_536


@dataclass(frozen=True)
class Payload:
    """Bodies of equal size, or of a mix, cut from one text; they repeat when it is used up."""

    text: bytes
    body_size: int = BODY_SIZE
    #: True if the sizes differ; `body_size` is their mean then.
    mixed: bool = False

    @classmethod
    def of_mixed_sizes(cls, text: bytes) -> Payload:
        """Return bodies of many sizes, drawn with a fixed seed."""
        sizes = _mixed_sizes(len(text))
        return cls(text, len(text) // len(sizes), mixed=True)

    @cached_property
    def bodies(self) -> list[bytes]:
        """The distinct bodies, in a fixed order."""
        if self.mixed:
            ends = np.cumsum(_mixed_sizes(len(self.text))).tolist()
            return [self.text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        size = self.body_size
        return [self.text[at : at + size] for at in range(0, len(self.text) - size + 1, size)]

    @property
    def digest(self) -> str:
        """Differs between runs over different texts: Python versions bring different sources."""
        return xxhash.xxh3_64_hexdigest(self.text)

    def messages(self, count: int) -> Iterator[bytes]:
        """Hand out `count` bodies one by one."""
        return islice(cycle(self.bodies), count)

    def column(self, count: int, first: int = 0) -> pa.BinaryArray:
        """Return `count` bodies as an Arrow column, from the `first`-th on."""
        bodies = self.bodies
        return pa.array([bodies[(first + n) % len(bodies)] for n in range(count)], pa.binary())

    def batches(
        self,
        size: int,
        *,
        topics: int = 1,
        partitions: int = 1,
        mixed: bool = True,
        skew: Skew = "even",
    ) -> list[pa.Table]:
        """Return tables of `size` rows with `topic`, `partition` and `body`, to be used in turn.

        `mixed` draws each row's topic with a fixed seed; otherwise a table is of one topic. There
        are as many tables as it takes to use the whole text, or to name every topic and partition.
        `skew` "zipf" draws topic and partition together, the n-th with a weight of 1/n.
        """
        random = np.random.default_rng(SEED)
        count = max(1, len(self.bodies) // size, -(-topics * partitions // size))
        if not mixed:
            count = max(count, topics)
        tables = []
        for number in range(count):
            rows = np.arange(number * size, (number + 1) * size)
            places = rows % partitions
            chosen = random.integers(0, topics, size) if mixed else np.full(size, number % topics)
            if skew == "zipf":
                chosen, places = divmod(zipf(topics * partitions, size, random), partitions)
            columns = {
                "topic": pa.array(chosen.astype(np.int32)),
                "partition": pa.array(places.astype(np.int32)),
                "body": self.column(size, number * size % max(1, len(self.bodies) - size + 1)),
            }
            tables.append(pa.table(columns))
        return tables


def zipf(places: int, count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw `count` of `places`, the n-th with a weight of 1/n."""
    weights = np.cumsum(1 / np.arange(1, places + 1))
    return np.searchsorted(weights, random.random(count) * weights[-1])


def _mixed_sizes(total: int) -> list[int]:
    """Return sizes that add up to at most `total`."""
    random = np.random.default_rng(SEED)
    count = max(1, total // MIX_MEDIAN)
    drawn = np.exp(random.normal(np.log(MIX_MEDIAN), MIX_SIGMA, count))
    sizes = np.clip(drawn, MIX_LEAST, MIX_MOST).astype(np.int64)
    return sizes[np.cumsum(sizes) <= total].tolist() or [total]


def standard_library(size: int = TEXT_BYTES) -> Payload:
    """Read the sources of the Python standard library, in the order of their paths."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    total = 0
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        parts.append(path.read_bytes())
        total += len(parts[-1])
        if total >= size:
            break
    return Payload(b"".join(parts)[:size])
