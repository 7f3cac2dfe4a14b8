"""`rocketcompat recover | repair | rebuild`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest

#: A broker's lock on a store, held until stdin ends.
_HOLD = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    print("held", flush=True)
    sys.stdin.read()
"""


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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks is Linux's")
def test_a_store_that_a_broker_holds_is_refused_with_the_broker_s_process(
    command: Command, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096, max_index_num=100, max_hash_slot_num=7
    )
    with rocketcompat.open(root, "w", config) as store:
        store.put_message(Message("T", b"1"))
    broker = subprocess.Popen(
        [sys.executable, "-c", _HOLD, root / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with broker:
        assert broker.stdout
        assert broker.stdout.readline() == b"held\n"
        done = command("repair", root, "--apply")
        assert (done.code, done.out) == (3, "")
        assert f"locked by process {broker.pid}: " in done.err
        planned = command("repair", root)
        broker.communicate(b"")
    assert f"process {broker.pid} writes to the store" in planned.err
    assert "writes to the store" not in command("repair", root).err
