"""Ten thousand topics with a message each: made, and opened after a close and after a kill.

Each run is a process of its own. It prints how long it took, how much memory it had at most and how
many descriptors; `many_child.py` is that process.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bench.layouts.layout import fresh
from bench.workloads.cases import Case, Measure, Runner, child, reopener

How = Literal["each", "batch", "raw"]
_MODULE = "bench.workloads.many_child"


def creating(how: How) -> Callable[[Case], Any]:
    """Create topics and append a message to each, one by one or in one batch, in the page cache.

    `raw`: their directories and files with the same bytes, and nothing else.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        def run(messages: int) -> Measure:
            root = fresh(case.place / f"many-{how}")
            try:
                return _measure(_killed(f"create-{how}", root, case.topics))
            finally:
                shutil.rmtree(root)

        yield run

    return start


def opening_many(how: How, *, closed: bool) -> Callable[[Case], Any]:
    """Open such a store, closed or left by a kill; each time a copy that was not opened yet."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        made = case.place / f"made-{how}"
        if closed:
            child(f"closed-{how}", made, case.topics, module=_MODULE)
        else:
            _killed(f"create-{how}", made, case.topics)

        def run(messages: int) -> Measure:
            root = case.place / "copy"
            shutil.copytree(made, root)
            try:
                return _measure(_killed("open-many", root, case.topics))
            finally:
                shutil.rmtree(root)

        yield run

    return start


def opening_closed(*, messages: int = 0) -> Callable[[Case], Any]:
    """Open a store that was closed, of one topic, with the messages of the case or with so many."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        root = case.place / f"closed-{messages}"
        child("closed", root, messages or case.messages, module=_MODULE)
        yield reopener(root)

    return start


def _killed(command: str, root: Path, count: int) -> dict[str, Any]:
    """Run a command that ends with the process killing itself: nothing is closed."""
    return child(command, root, count, expect=-signal.SIGKILL, module=_MODULE)


def _measure(found: dict[str, Any]) -> Measure:
    return Measure(
        found["messages"],
        1,
        found["seconds"],
        found["cpu_seconds"],
        memory_mb=found["memory_mb"],
        descriptors=found["descriptors"],
    )
