"""Contestants by kind: a call a message, a call a batch, with syncs, reads, scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.layouts.layout import SingleLog, SingleLogAndShards, TopicSharded
from bench.layouts.peers import PEERS
from bench.measure import limits
from bench.workloads.cases import Case, Contestant, Role, appending, reading, scanning, syncing


def _role(make: Any) -> Role:
    if make in (TopicSharded, SingleLog, SingleLogAndShards):
        return "ours"
    return "peer" if make in PEERS else "user"


@dataclass(frozen=True)
class Way:
    """How a layout does a kind of work, and the capabilities that it needs for that."""

    needs: frozenset[str]
    start: Callable[[Any], Callable[[Case], Any]]

    def __call__(self, make: Any) -> Contestant:
        """Return the layout as a contestant."""
        return Contestant(make.name, _role(make), self.start(make))


#: A call a message.
one_by_one = Way(frozenset({"append", "read"}), appending)
#: A call a batch.
in_batches = Way(frozenset({"batch", "read"}), partial(appending, batches=True))
#: A call a message, each on stable storage.
synced = Way(frozenset({"append", "read", "fsync"}), syncing)
#: Partition after partition.
read_by = Way(frozenset({"batch", "read", "reopen"}), reading)
#: The same, by a layout that was opened just before.
first_read_by = Way(frozenset({"batch", "read", "reopen"}), partial(reading, first=True))
#: Everything.
scanned = Way(frozenset({"batch", "read", "scan", "reopen"}), scanning)


def beside(contestant: Contestant, name: str, **sizes: Any) -> Contestant:
    """Return the same work at other sizes of a `Case`, to be compared with."""
    return Contestant(name, "limit", lambda case: contestant.start(replace(case, **sizes)))


ENCODE = Contestant("limit: encode, CRC, write", "limit", limits.encode_and_write)
WRITE_EACH = Contestant("limit: a write each", "limit", limits.write_each)
