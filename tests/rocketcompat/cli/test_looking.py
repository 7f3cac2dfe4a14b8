"""`rocketcompat info | lag | index | checkpoint`."""

from __future__ import annotations

import pytest

from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from tests.support.command import Command
from tests.support.golden import Golden, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.commands import SOUND, VERSIONS
from tests.support.rocket.files.commands import basic_fixture as basic_fixture
from tubestore.errors import InvalidMessage


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", [*SOUND, "pull-limits", "stale-units"])
def test_the_geometry_of_the_index_is_proven_by_its_content(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    config = real.meta["config"]
    geometry = geometry_of(StoreDirectory(real.store))
    assert (geometry.slots, geometry.items) == (config["maxHashSlotNum"], config["maxIndexNum"])


def test_a_geometry_that_is_given_must_fit(golden: GoldenFactory) -> None:
    store = golden("rocketmq", "4.9.8", "basic").store
    assert geometry_of(StoreDirectory(store, {"maxHashSlotNum": 101})).items == 2000
    assert geometry_of(StoreDirectory(store, {"maxIndexNum": 2000})).slots == 101
    with pytest.raises(InvalidMessage, match="do not give"):
        geometry_of(StoreDirectory(store, {"maxHashSlotNum": 101, "maxIndexNum": 2001}))


def test_the_root_of_a_store_is_printed_as_it_was_named(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(basic.store.parent)
    for place in (basic.store.name, str(basic.store)):
        assert command("info", place, "-f", "jsonl").rows[0]["root"] == place
    assert f"root                 {basic.store.name}\n" in command("info", basic.store.name).out
