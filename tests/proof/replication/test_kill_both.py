"""Real processes on the loopback, killed on both sides: what was released is on the slave.

`HA_KILLS` sets how often a side is killed (default 4).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rocketcompat.check.whole import check_store
from rocketcompat.ha.slave_store import SlaveRoot
from rocketcompat.inspect.directory import StoreDirectory
from tests.proof.replication.child import CONFIG, body_of
from tests.support import REPOSITORY
from tests.support.rocket.inside import log_of

KILLS = int(os.environ.get("HA_KILLS", "4"))
pytestmark = [pytest.mark.gate, pytest.mark.crash]


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.proof.replication.child", *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    assert child.stdout is not None
    assert child.stdout.readline(), "the child ended by itself"
    return child


def kill(child: subprocess.Popen[str]) -> list[str]:
    """Kill a child; returns the whole lines that it had written."""
    child.send_signal(signal.SIGKILL)
    assert child.stdout is not None
    rest = child.stdout.read()
    child.stdout.close()
    child.wait()
    return [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]


def test_what_a_synchronous_put_was_released_for_survives_the_masters_loss(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED", Random().randrange(1 << 30)))
    print(f"CRASH_SEED={seed}")
    random = Random(seed)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    released: dict[int, int] = {}

    def note(lines: list[str]) -> None:
        for line in lines:
            number, end = map(int, line.split())
            released[number] = end

    first = 0
    master = start("master", tmp_path / "master", port, first)
    slave = start("slave", tmp_path / "slave", port)
    for _ in range(KILLS):
        assert master.stdout is not None
        for _ in range(random.randrange(1, 60)):
            line = master.stdout.readline()
            assert line, "the master ended by itself"
            note([line])
        if random.random() < 0.5:
            note(kill(master))
            first += 1_000_000
            master = start("master", tmp_path / "master", port, first)
        else:
            kill(slave)
            slave = start("slave", tmp_path / "slave", port)
    note(kill(master))
    kill(slave)
    assert len(released) > KILLS
    bodies: dict[int, bytes] = {}
    with SlaveRoot.of(tmp_path / "slave", CONFIG).open("m:1", background=False) as store:
        assert store.max_physical_offset >= max(released.values())
        assert not store.problems
        copied = log_bytes(store)
        for batch in store.scan():
            bodies |= {int(body[:8]): body for body in batch.column("body").to_pylist()}
    for number in released:
        assert bodies[number] == body_of(number)
    master_log = b"".join(
        path.read_bytes() for path in sorted((tmp_path / "master" / "commitlog").iterdir())
    )
    assert copied == master_log[: len(copied)]
    rows = check_store(StoreDirectory(tmp_path / "slave"))
    assert [row for row in rows if row["severity"] == "error"] == []


def log_bytes(store: Any) -> bytes:
    log, data = log_of(store), b""
    while len(data) < log.max_offset:
        data += log.read_at(len(data), 1 << 20)
    return data
