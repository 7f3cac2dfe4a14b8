"""Every moment at which a recorded run could have died, and what the next one would find.

    journal = vfs.record()
    ...                                             # the run, with vfs.mark(...) on the way
    for state in crash_states(journal, seed=1):
        with tubestore.open("/store", vfs=state.vfs(clock)) as store:
            assert everything_in(state.marks).is_in(store)

Two kinds of death at each moment between two calls:
- `kill`: the process ends, the machine goes on. All calls are done, the last write perhaps
  in part; nothing is lost, and what was not synced is still not synced.
- `power`: the machine ends; `power_cut.py` defines what may survive. The boot id changes.

A state may be opened with `record=True`, and the journal of its recovery explored in turn:
a crash during recovery, or a crash after a recovery after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

from tubestore.clock import Clock
from tubestore.testing.calls import Call
from tubestore.testing.disk import Disk
from tubestore.testing.journal import Journal
from tubestore.testing.memory_vfs import MemoryVfs
from tubestore.testing.power_cut import power_cut

PAGE = 4096


@dataclass(frozen=True)
class CrashState:
    """What a crash leaves, and where it came from."""

    kind: Literal["kill", "power"]
    step: int  #: calls done before the crash
    variant: int
    disk: Disk
    journal: Journal
    seed: int

    @property
    def marks(self) -> list[Any]:
        """The marks that were set before the crash."""
        return self.journal.marks_until(self.step)

    @cached_property
    def key(self) -> bytes:
        """Equal for states that a program cannot distinguish: same tree, same kind of boot."""
        return self.kind[:1].encode() + self.disk.digest()

    def vfs(self, clock: Clock | None = None) -> MemoryVfs:
        """Return a file system in this state; what is done to it does not change the state."""
        return MemoryVfs(clock, self.disk)

    def __str__(self) -> str:
        calls = self.journal.calls
        before = (
            f"before call {self.step}, {calls[self.step]}"
            if self.step < len(calls)
            else "at the end"
        )
        return f"{self.kind} {before} (seed {self.seed}, variant {self.variant})"


#: Bytes that the processor copies by one instruction; no kill comes in between.
_STORE = 8


def crash_states(
    journal: Journal,
    *,
    seed: int,
    variants: int | Iterable[int] = 8,
    kinds: Iterable[str] = ("kill", "power"),
    steps: Callable[[int], bool] | None = None,
) -> Iterator[CrashState]:
    """Yield the states at every step (or at those chosen): the kill, and `variants` power cuts.

    Variants 0 to 3 of a power cut are extremes, all others are drawn (see `power_cut`): a number
    means the first so many, a sequence names them. The same journal, seed and numbers give the
    same states. States may repeat: `Distinct`
    filters the new ones.
    """
    kinds = tuple(kinds)
    chosen = tuple(range(variants) if isinstance(variants, int) else variants)
    disk = journal.start.fork()
    for step in range(len(journal) + 1):
        if steps is None or steps(step):
            if "kill" in kinds:
                yield from _kills(disk, journal, step, seed)
            if "power" in kinds:
                yield from _power_cuts(disk, journal, step, seed, chosen)
        if step < len(journal):
            disk.apply(journal.calls[step])


def _random(seed: int, step: int, variant: int) -> Random:
    return Random((seed * 1_000_003 + step) * 1_000_003 + variant)


def _kills(disk: Disk, journal: Journal, step: int, seed: int) -> Iterator[CrashState]:
    yield CrashState("kill", step, 0, disk.fork(), journal, seed)
    if step < len(journal) and journal.calls[step].kind == "pwrite":
        for variant, part in enumerate(_parts(journal.calls[step], seed, step), 1):
            half = disk.fork()
            half.apply(part)
            yield CrashState("kill", step, variant, half, journal, seed)


def _parts(call: Call, seed: int, step: int) -> Iterator[Call]:
    """A write that was killed: up to a border of pages, or short and never gone on with."""
    size = len(call.data)
    if size <= _STORE:
        return
    borders = range(PAGE - call.position % PAGE, size, PAGE)
    random = _random(seed, step, -1)
    for kept in sorted({*list(borders)[:2], random.randrange(size), random.randrange(size)}):
        if kept:
            yield call._replace(data=call.data[:kept])


def _power_cuts(
    disk: Disk, journal: Journal, step: int, seed: int, variants: tuple[int, ...]
) -> Iterator[CrashState]:
    boot_id = f"{disk.boot_id}+"
    for variant in variants:
        after = power_cut(disk, _random(seed, step, variant), variant, boot_id)
        yield CrashState("power", step, variant, after, journal, seed)


class Distinct:
    """Count states, and select those that need to be checked.

    A known state is checked again when more had been promised by then, and once for
    each `context`: runs with other promises. It is counted once all the same.
    """

    def __init__(self) -> None:
        self._promised: dict[tuple[bytes, Hashable], int] = {}
        self.keys: set[bytes] = set()
        self.drawn = 0

    def __len__(self) -> int:
        """How many different states were seen."""
        return len(self.keys)

    def is_new(self, state: CrashState, context: Hashable = None) -> bool:
        """Return True if the state needs to be checked."""
        self.drawn += 1
        promised = state.journal.count_marks_until(state.step)
        known = self._promised.get((state.key, context), -1)
        if known >= promised:
            return False
        self._promised[state.key, context] = promised
        self.keys.add(state.key)
        return True
