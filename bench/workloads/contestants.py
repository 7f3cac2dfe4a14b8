"""Contestants by kind: a call a message, a call a batch, with syncs, reads, scans."""

from __future__ import annotations

from typing import Any

from bench.layouts.layout import SingleLog, SingleLogAndShards, TopicSharded
from bench.measure import limits
from bench.workloads.cases import Contestant, appending, reading, scanning, syncing


def _role(make: Any) -> Any:
    return "ours" if make in (TopicSharded, SingleLog, SingleLogAndShards) else "peer"


def one_by_one(make: Any) -> Contestant:
    """A call a message."""
    return Contestant(make.name, _role(make), appending(make))


def in_batches(make: Any) -> Contestant:
    """A call a batch."""
    return Contestant(make.name, _role(make), appending(make, batches=True))


def synced(make: Any) -> Contestant:
    """Each call on stable storage."""
    return Contestant(make.name, _role(make), syncing(make))


def read_by(make: Any) -> Contestant:
    """A partition after the other."""
    return Contestant(make.name, _role(make), reading(make))


def first_read_by(make: Any) -> Contestant:
    """The same, by a layout that was opened just before."""
    return Contestant(make.name, _role(make), reading(make, first=True))


def scanned(make: Any) -> Contestant:
    """Everything."""
    return Contestant(make.name, _role(make), scanning(make))


ENCODE = Contestant("limit: encode, CRC, write", "limit", limits.encode_and_write)
WRITE_EACH = Contestant("limit: a write each", "limit", limits.write_each)
