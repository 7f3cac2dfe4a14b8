"""Fixtures that many tests share: golden stores, a disk in memory, a clock that stands, a store."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator

import hypothesis
import pytest
import typer.main

import tubestore
from tests.support.golden import golden_fixture as golden_fixture
from tubestore.clock import ManualClock
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import MemoryVfs

hypothesis.settings.register_profile("quick", deadline=None, max_examples=50)
hypothesis.settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave one in `quick` parameters to the quick tests, one in `gate` to the gate."""
    families = defaultdict(list)
    for item in items:
        if item.get_closest_marker("one_in"):
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        for number, item in enumerate(sorted(family, key=lambda item: item.name)):
            steps = item.get_closest_marker("one_in").args  # type: ignore[union-attr]
            for mark, step in zip(("gate", "slow"), steps, strict=False):
                if number % step:
                    item.add_marker(mark)


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Build the tree of commands once a process, as a program does: it is most of a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory_vfs(clock: ManualClock) -> MemoryVfs:
    return MemoryVfs(clock)


@pytest.fixture
def store(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[MessageStoreManager]:
    """A store on a disk in memory, without threads: flushes happen in the caller."""
    with tubestore.open("/store", vfs=memory_vfs, clock=clock, background=False) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests noted with `record_property`, e.g. how many crash states there were."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when == "call":
                for name, value in report.user_properties:
                    terminalreporter.write_line(f"{name}: {value}")
