"""`rocketcompat recover | repair | rebuild`."""

from __future__ import annotations

import shutil
from pathlib import Path

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest


def test_recover_begins_a_new_log_where_the_log_is_given_up(
    command: Command, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096, max_index_num=100, max_hash_slot_num=7, layouts=LAYOUTS
    )
    with rocketcompat.open(root, "w", config) as store:
        store.put_message(Message("T", b"1", keys=["k"]))
    shutil.move(root / "commitlog", tmp_path / "elsewhere")
    sizes = ("-o", "mappedFileSizeCommitLog=4096")
    before = digest(root)
    for refused in (("recover",), ("check", "-o", "acceptLostLog=true")):
        done = command(refused[0], root, *sizes, *refused[1:])
        assert (done.code, digest(root)) == (3, before)
        assert "no commitlog directory" in done.err
    (row,) = command("recover", root, *sizes, "-o", "acceptLostLog=true", "-f", "jsonl").rows
    assert row["log_end"] == 0
    assert (root / "commitlog").is_dir()
    kept = {path.name for path in (root / ".tubestore" / "quarantine" / "1").iterdir()}
    assert {"consumequeue", "index", "tube"} <= kept
    with rocketcompat.open(root, "w", config) as store:
        assert store.put_message(Message("T", b"2")).queue_offset == 0


def test_recover_makes_no_store_of_a_directory_without_one(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    done = command("recover", tmp_path, "-o", "acceptLostLog=true")
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (3, ["notes"])
    assert "no commitlog directory" in done.err
