"""Messages by key, by a scan of the log."""

from __future__ import annotations

import zlib
from pathlib import Path

from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.inspect.selection import Selection
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.selected import put


def test_two_keys_of_one_hash_are_distinguished(tmp_path: Path) -> None:
    """ "Aa" and "BB" have one Java hash; the real store's query returns both."""
    places = put(tmp_path, [Message("T", b"x", keys=[key]) for key in ("Aa", "BB", "AaAa", "C")])
    places += put(tmp_path, [Message("T", b"x", keys=["c", "Aa"])])
    directory = StoreDirectory(tmp_path)
    for key, wanted in (("Aa", [places[0], places[4]]), ("BB", [places[1]]), ("D", [])):
        found = dump_log(directory, Selection(key=key))
        assert [row["physical_offset"] for row in found] == wanted


def test_a_search_looks_into_unpacked_bodies(tmp_path: Path, command: Command) -> None:
    places = put(tmp_path, [
        Message("T", zlib.compress(b"a needle in hay" * 9), sys_flag=1), Message("T", b"hay"),
    ])  # fmt: skip
    assert command("dump", tmp_path, "-f", "jsonl", "--grep", "need.e").rows == []
    (row,) = command("dump", tmp_path, "-f", "jsonl", "--grep", "need.e", "--decompress").rows
    assert row["physical_offset"] == places[0]
