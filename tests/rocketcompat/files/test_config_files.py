"""A broker's configuration, as it is shown: from a backup, and byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcompat.files.config_files import (
    config_names,
    consumer_offsets,
    parse_config,
    read_config,
)
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tubestore.core.vfs import OsVfs


def test_a_broken_configuration_is_read_from_its_backup(tmp_path: Path) -> None:
    """apache/rocketmq#3401: zeros after a host crash, and the backup was not used."""
    folder = tmp_path / "config"
    folder.mkdir()
    path = folder / "consumerOffset.json"
    backup = folder / "consumerOffset.json.bak"
    backup.write_text('{"offsetTable":{"T@g":{0:1}}}')
    for broken, problem in (
        (bytes(40), "empty"),
        (b'{"offsetTable":{"T@', "no JSON"),
        (b"", "empty"),
    ):
        path.write_bytes(broken)
        found = read_config(OsVfs(), str(tmp_path), "consumerOffset")
        assert found.from_backup
        assert problem in (found.problem or "")
        assert consumer_offsets(found.content or {}) == {("T", "g", 0): 1}
    path.unlink()
    assert read_config(OsVfs(), str(tmp_path), "consumerOffset").problem == "missing"
    assert config_names(OsVfs(), str(tmp_path)) == ["consumerOffset"]
    backup.unlink()
    assert read_config(OsVfs(), str(tmp_path), "consumerOffset").content is None


def test_numbers_in_texts_are_left_alone() -> None:
    text = '{"a":"{1:2}, 3:","b":{ -1 : "x\\"{5:6", 22:[{3:4}]}}'
    assert parse_config(text) == {"a": "{1:2}, 3:", "b": {"-1": 'x"{5:6', "22": [{"3": 4}]}}
    with pytest.raises(ValueError, match="not an object"):
        parse_config("[1]")


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_real_configuration_files_are_read(golden: GoldenFactory, version: str) -> None:
    store = golden("rocketmq", version, "delayed").store
    for name in config_names(OsVfs(), str(store)):
        found = read_config(OsVfs(), str(store), name)
        assert found.problem is None
        assert found.content is not None
    if version == "4.9.8":
        content = read_config(OsVfs(), str(store), "delayOffset").content or {}
        assert content["offsetTable"] == {"1": 7, "2": 4}
