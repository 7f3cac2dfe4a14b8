"""Real consumers in processes of their own, really killed: every message is processed, or once.

`KILL_ROUNDS` sets how many consumers are killed; `CRASH_SEED` repeats the random choices.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

import tubestore
from tests.proof.consume_child import OUTPUTS, output_of
from tests.proof.explorer.explore import seed_from_environment
from tests.support import REPOSITORY
from tubestore.offline.check import check

ROUNDS = int(os.environ.get("KILL_ROUNDS", "6"))
PARTITIONS = 6
#: How long the whole may take where nothing is wrong, on a slow machine.
PATIENCE = 120.0

pytestmark = [pytest.mark.gate, pytest.mark.crash]


class Child:
    """A consumer in another process, and what it has processed."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.consume_child", str(root), "g"],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        #: (partition, body) in the order of processing.
        self.processed: list[tuple[int, bytes]] = []
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # the last one may have been killed too
                partition, body = line.split()
                self.processed.append((int(partition), body))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_every_message_is_processed_whatever_consumer_is_killed(tmp_path: Path) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    random = Random(seed)
    sent: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
    children: list[Child] = []
    gone: list[Child] = []
    with tubestore.open(tmp_path) as store:
        orders = store.create_topic("orders", partitions=PARTITIONS)

        def append(count: int) -> None:
            for _ in range(count):
                partition = random.randrange(PARTITIONS)
                body = b"%d-%d" % (partition, len(sent[partition]))
                orders.append(body, partition=partition, durability="page_cache")
                sent[partition].append(body)

        def processed() -> set[bytes]:
            return {body for c in (*children, *gone) for _, body in list(c.processed)}

        def wait_for(count: int) -> None:
            deadline = time.monotonic() + PATIENCE
            while len(processed()) < count:
                assert time.monotonic() < deadline, f"{len(processed())} of {count} messages"
                time.sleep(0.01)

        try:
            children += [Child(tmp_path), Child(tmp_path)]
            for _ in range(ROUNDS):
                append(random.randrange(1, 150))
                total = sum(map(len, sent.values()))
                # Killed at work, or after it.
                wait_for(random.choice((total, max(1, total - random.randrange(1, 40)))))
                victim = children.pop(random.randrange(len(children)))
                victim.kill()
                gone.append(victim)
                append(random.randrange(1, 150))
                children.append(Child(tmp_path))
            wait_for(sum(map(len, sent.values())))
        finally:
            for child in children:
                child.kill()
    assert processed() == {body for bodies in sent.values() for body in bodies}
    for child in (*gone, *children):
        for partition in range(PARTITIONS):
            bodies = {body for p, body in child.processed if p == partition}
            assert bodies <= set(sent[partition])


def test_a_killed_consumer_loses_its_partitions_within_its_session(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        orders = store.create_topic("orders", partitions=PARTITIONS)
        child = Child(tmp_path)
        with store.consumer("g", "orders", session_timeout=1.0) as consumer:
            deadline = time.monotonic() + PATIENCE
            while len(consumer.assignment) != PARTITIONS // 2:
                assert time.monotonic() < deadline
                consumer.poll(timeout=0.05)
            child.kill()
            for number in range(PARTITIONS):
                orders.append(b"%d" % number, partition=number)
            begun, seen = time.monotonic(), 0
            while seen < PARTITIONS:
                assert time.monotonic() < deadline
                seen += len(consumer.poll(timeout=0.05))
            # The session lasts a second; the rest is room for a slow machine.
            assert time.monotonic() - begun < 1.0 + 10.0
            assert len(consumer.assignment) == PARTITIONS


# -- exactly once --------------------------------------------------------------------------------


def kill_a_writer(root: Path, random: Random) -> None:
    """Run a process until it is killed, some commits after its beginning."""
    seed = str(random.randrange(1 << 30))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.proof.consume_child", str(root), "g", seed],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    assert child.stdout is not None
    assert child.stdout.read(random.randrange(1, 60)), "it ended by itself"
    child.kill()
    child.wait()
    child.stdout.close()


def bodies(store: tubestore.MessageStoreManager, topic: str) -> list[bytes]:
    batches = store[topic].scan(columns=["body"])
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


def test_each_message_is_in_the_output_once_whenever_the_process_is_killed(
    tmp_path: Path,
) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    random = Random(seed)
    for _ in range(ROUNDS):
        kill_a_writer(tmp_path, random)
    with tubestore.open(tmp_path) as store:
        assert not store.problems
        with store.consumer("g", "in", auto_commit=False, session_timeout=0.5) as consumer:
            deadline = time.monotonic() + PATIENCE
            while sum(consumer.unread().values()) or not consumer.assignment:
                assert time.monotonic() < deadline
                consumer.commit_with(output_of(consumer.poll(500, timeout=0.05)))
        sent = bodies(store, "in")
        assert sent
        for name in OUTPUTS:
            assert bodies(store, name) == sent, f"not exactly once in {name!r}"
    assert not [each for each in check(tmp_path) if each.severity == "error"]
