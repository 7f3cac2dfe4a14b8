"""`rocketcompat clean`."""

from __future__ import annotations

from pathlib import Path

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.options import LAYOUTS
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest


def test_clean_reports_why_each_file_stays_or_goes(tmp_path: Path, command: Command) -> None:
    import os
    import time

    config = MessageStoreConfig(mapped_file_size_commit_log=4096, max_hash_slot_num=7,
                                max_index_num=1000, mapped_file_size_consume_queue=200,
                                layouts=LAYOUTS)  # fmt: skip
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        for _ in range(12):
            store.put_message(Message("T", bytes(1500)))
    files = sorted((tmp_path / "commitlog").iterdir())
    old = time.time() - 100 * 3600
    for path in files[:2]:
        os.utime(path, (old, old))
    before = digest(tmp_path)
    rows = command("clean", tmp_path, "--manual", "-f", "jsonl").rows
    assert digest(tmp_path) == before
    assert [row["delete"] for row in rows] == [True, True, *[False] * (len(files) - 2)]
    assert rows[-1]["reason"] == "the last file is never deleted"
    assert command("clean", tmp_path, "--manual", "--apply", "-f", "jsonl").code == 0
    assert sorted((tmp_path / "commitlog").iterdir()) == files[2:]
    assert {f["reason"] for f in check(tmp_path)} <= {"checkpoint"}
