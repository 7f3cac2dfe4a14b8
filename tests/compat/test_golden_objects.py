"""Golden stores as copies in an object storage: read as the directories that they are copies of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tubestore
from rocketcompat.check.whole import check as check_log
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_tables
from tests.support.engine.objects import directory_as_objects, uri_of
from tests.support.golden import (
    ROCKET_VERSIONS,
    TUBE_VERSION,
    rocket_scenarios,
    tube_scenarios,
    unpack,
)
from tubestore.errors import TubeStoreError
from tubestore.offline.check import check
from tubestore.offline.dump import dump


def of_either(look: Callable[[str], Any], root: str) -> Any:
    """Return what is found at a root, or the refusal; the root's name does not count."""
    try:
        found = look(root)
    except TubeStoreError as error:
        found = f"{type(error).__name__}: {error}"
    return repr(found).replace(root, "ROOT")


def scanned(root: str) -> Any:
    with tubestore.open(root, mode="r") as store:
        rows = [row for topic in store.values() for b in topic.scan() for row in b.to_pylist()]
        return rows, [str(problem) for problem in store.problems]


TUBE: tuple[Callable[[str], Any], ...] = (
    scanned,
    lambda root: [row for batch in dump(root) for row in batch.to_pylist()],
    lambda root: [finding.as_row() for finding in check(root, wait=lambda _: None)],
)
LOG: tuple[Callable[[str], Any], ...] = (
    lambda root: [row for t in dump_tables(StoreDirectory(root)) for row in t.to_pylist()],
    lambda root: list(check_log(root)),
)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scenario", tube_scenarios())
def test_a_copy_of_a_tubemq_store_is_the_store(scenario: str, tmp_path: Path) -> None:
    root = unpack("tubemq", TUBE_VERSION, scenario, tmp_path / "golden").store
    with directory_as_objects(tmp_path):
        for look in TUBE:
            assert of_either(look, uri_of(root, tmp_path)) == of_either(look, str(root))


@pytest.mark.one_in(16)
@pytest.mark.parametrize(
    ("version", "scenario"), [(v, name) for v in ROCKET_VERSIONS for name in rocket_scenarios(v)]
)
def test_a_copy_of_a_rocketmq_store_is_the_store(
    version: str, scenario: str, tmp_path: Path
) -> None:
    root = unpack("rocketmq", version, scenario, tmp_path / "golden").store
    with directory_as_objects(tmp_path):
        for look in LOG:
            assert of_either(look, uri_of(root, tmp_path)) == of_either(look, str(root))
