"""The bar of a long run, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

Item = TypeVar("Item")


@contextlib.contextmanager
def bars(wanted: bool) -> Iterator[None]:
    """Draw the bars of the runs inside only if they are wanted."""
    hidden = not wanted and not _Bar.is_there
    _Bar.is_there |= hidden  # as inside of a run that has one
    try:
        yield
    finally:
        _Bar.is_there &= not hidden


@contextlib.contextmanager
def watching(label: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Give a long run a function to call with (done, total or None); it draws a bar on a terminal.

    The bar appears after two seconds in which nothing was printed, and goes before something is.
    A run inside of another one draws none.
    """
    if not sys.stderr.isatty() or _Bar.is_there:
        yield lambda _done, _total: None
        return
    bar = _Bar(label, in_bytes)
    _Bar.is_there = True
    try:
        with contextlib.ExitStack() as stack:
            if sys.stdout.isatty():
                stack.enter_context(contextlib.redirect_stdout(cast(Any, _Erasing(bar))))
            yield bar
    finally:
        _Bar.is_there = False
        bar.erase()


def watched(
    items: Iterable[Item], label: str, size: Callable[[Item], int], total: int | None = None
) -> Iterator[Item]:
    """Pass items on, with the bar of a long run that counts what `size` gives for each."""
    done = 0
    with watching(label) as watch:
        for item in items:
            yield item
            done += size(item)
            watch(done, total)


class _Bar:
    """A bar on stderr; stdout stays as it is, which may be a file."""

    #: True while a run has one.
    is_there = False
    #: So long nothing is printed before the bar appears.
    quiet_seconds = 2.0

    def __init__(self, label: str, in_bytes: bool) -> None:
        self._label, self._in_bytes = label, in_bytes
        self._quiet_since = time.monotonic()
        self._drawn: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int | None) -> None:
        if self._drawn is None:
            if time.monotonic() - self._quiet_since < self.quiet_seconds:
                return
            self._draw()
        self._drawn.update(self._task, completed=done, total=total)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
        )
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.progress import TransferSpeedColumn as Speed

        bytes_ = (DownloadColumn(), Speed(), Remaining())
        counts = bytes_ if self._in_bytes else (MofNCompleteColumn(),)
        self._drawn = Progress(
            TextColumn(self._label), BarColumn(), *counts, console=Console(stderr=True),
            transient=True, redirect_stdout=False,
        )  # fmt: skip
        self._task = self._drawn.add_task(self._label, total=None)
        self._drawn.start()

    def erase(self) -> None:
        """Take the bar from the terminal; the next call may draw it again later."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None
        self._quiet_since = time.monotonic()


class _Erasing:
    """Stdout, when it is the terminal of the bar: the bar goes before a line comes."""

    def __init__(self, bar: _Bar) -> None:
        self._bar, self._stream = bar, sys.stdout

    def write(self, text: str) -> int:
        self._bar.erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
