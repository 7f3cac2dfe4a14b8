"""What a run was told and what it promised: the model that every crash state is held against.

- `Sent`: a message that was handed in, whatever became of it;
- `Promise`: an acknowledgement; it says where the message stands and what it survives;
- `Book`: both, over all runs of one history (run, crash, recovery, crash …).

A run marks its journal with lists of promises; `promises_at` says what was due at a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tubestore.options import DURABILITIES, Durability
from tubestore.testing import CrashState

RANK = {level: rank for rank, level in enumerate(DURABILITIES)}
#: The lowest level that survives a crash of this kind.
SURVIVES: dict[str, Durability] = {"kill": "page_cache", "power": "fsync"}


class Sent(NamedTuple):
    """A message as it was handed in; `id` counts all messages of a history."""

    id: int
    topic: str
    partition: int
    body: bytes
    tag: str | None


class Promise(NamedTuple):
    """A message that was acknowledged: where it stands, and the level that it has reached."""

    id: int
    offset: int
    level: Durability


Promises = dict[int, Promise]


@dataclass
class Book:
    """One history: grows while it runs, and is shared by the runs that continue it."""

    sent: dict[int, Sent] = field(default_factory=dict)
    by_body: dict[bytes, int] = field(default_factory=dict)

    def send(self, message: Sent) -> Sent:
        """Note a message before it is handed in."""
        self.sent[message.id] = message
        self.by_body[message.body] = message.id
        return message

    @property
    def next_id(self) -> int:
        """Ids rise with time, so that order can be read off them."""
        return len(self.sent)

    def fork(self) -> Book:
        """Return a copy for a history that branches off here."""
        return Book(dict(self.sent), dict(self.by_body))


def raised(promises: Iterable[Promise], level: Durability) -> list[Promise]:
    """Return those of the promises that are below `level`, at it."""
    return [p._replace(level=level) for p in promises if RANK[p.level] < RANK[level]]


def promises_at(state: CrashState, before: Promises) -> Promises:
    """Return what was promised when the crash came, `before` being what the run began with."""
    found = dict(before)
    for promises in state.marks:
        found.update((p.id, p) for p in promises)
    return found


def due(promises: Promises, kind: str) -> Promises:
    """Return the promises that a crash of this kind must not break."""
    least = RANK[SURVIVES[kind]]
    return {p.id: p for p in promises.values() if RANK[p.level] >= least}
