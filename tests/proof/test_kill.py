"""Real processes, really killed: what they acknowledged is there afterwards, exactly once.

`KILL_ROUNDS` sets how often the same directory is written to and its writer killed (default 6;
each begins with a recovery from the kill before), `CRASH_SEED` repeats the random choices.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import rocketcompat
import tubestore
from tests.proof.explorer.book import Book, Promise, Promises, Sent
from tests.proof.explorer.explore import seed_from_environment
from tests.proof.explorer.invariants import Found, check_history
from tests.proof.explorer.rocket_files import read_index, read_log, read_queues
from tests.proof.explorer.shards import read_shards
from tests.proof.kill_child import CONFIG, CONFIGS, OTHER, PARTITIONS, SHARDS, TOPIC, body_of
from tests.support import REPOSITORY
from tubestore.core.vfs import OsVfs

ROUNDS = int(os.environ.get("KILL_ROUNDS", "6"))
#: A child may number its messages up to here, so that no two children use the same number.
IDS_A_ROUND = 1_000_000
ACKS_MAX = 400

pytestmark = [pytest.mark.gate, pytest.mark.crash]


class Killed:
    """Children that write to one directory, one after the other, and what they said."""

    def __init__(
        self, kind: str, root: Path, seed: int, look: Callable[[Sent, int], None] | None = None
    ) -> None:
        self.kind, self.root, self.look = kind, root, look
        self.random = Random(seed)
        self.book = Book()
        self.promises: Promises = {}
        self.rounds = 0

    def run(self) -> None:
        """Start a child, read a random number of acknowledgements, kill it, read the rest."""
        first = self.rounds * IDS_A_ROUND
        self.rounds += 1
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.kill_child", self.kind, str(self.root), str(first),
             str(self.random.randrange(1 << 30))],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )  # fmt: skip
        assert child.stdout is not None
        try:
            for _ in range(self.random.randint(0, ACKS_MAX)):
                line = child.stdout.readline()
                assert line, f"the child ended by itself: {child.wait()}"
                self._note(line)
        finally:
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read()
            child.stdout.close()
            child.wait()
        for line in rest.splitlines(keepends=True):
            if line.endswith(b"\n"):  # the last one may have been killed too
                self._note(line)

    def _note(self, line: bytes) -> None:
        number, topic, partition, offset = line.split()
        self.promises[int(number)] = Promise(int(number), int(offset), "page_cache")
        body = body_of(int(number))
        sent = self.book.send(Sent(int(number), topic.decode(), int(partition), body, None))
        if self.look is not None:
            self.look(sent, int(offset))

    def check(self, found: list[Found]) -> None:
        """Hold what is there against what was said.

        What was written and not yet acknowledged may be there too, in its place in the order.
        """
        for row in found:
            if row.id is None and row.body is not None:
                number = int(row.body[:8])
                assert row.body == body_of(number), f"invented: {row}"
                self.book.send(Sent(number, row.topic, row.partition, row.body, None))
        known = [
            row._replace(id=self.book.by_body[row.body]) if row.body is not None else row
            for row in found
        ]
        check_history(known, self.book, self.promises, damage_allowed=False)


def test_the_engine_has_everything_that_killed_writers_acknowledged(tmp_path: Path) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    killed = Killed("engine", tmp_path, seed)
    for _ in range(ROUNDS):
        killed.run()
        with tubestore.open(tmp_path, background=False, **SHARDS) as store:
            for name in store.topics():
                store[name].partitions()  # recovers its shards
        found = read_shards(OsVfs(), str(tmp_path), killed.book, damage_allowed=False)
        killed.check(found)
    assert killed.promises, "nothing was acknowledged in any round"


def test_threads_lose_nothing_and_a_reader_beside_them_has_each_acknowledged_message_at_once(
    tmp_path: Path,
) -> None:
    """The reader is opened once: it lives over the kills, the recoveries and the new writers."""
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    chance = Random(seed)
    with tubestore.open(tmp_path, background=False, **SHARDS):
        pass
    with tubestore.open(tmp_path, mode="r", background=False) as reader:

        def look(sent: Sent, offset: int) -> None:
            if chance.random() < 0.1:
                reader.refresh()
                page = reader[sent.topic].read(sent.partition, offset, limit=1)
                assert [(m.body, m.offset) for m in page] == [(sent.body, offset)]

        killed = Killed("threads", tmp_path, seed, look)
        for _ in range(ROUNDS):
            killed.run()
            with tubestore.open(tmp_path, background=False, **SHARDS) as store:
                for name in store.topics():
                    store[name].partitions()
            killed.check(read_shards(OsVfs(), str(tmp_path), killed.book, damage_allowed=False))
        assert reader.problems == []
    assert killed.promises, "nothing was acknowledged in any round"


@pytest.mark.parametrize("kind", ["stack", "mapped"])
def test_log_queues_index_and_shards_have_it_exactly_once(tmp_path: Path, kind: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    killed = Killed(kind, tmp_path, seed)
    for _ in range(ROUNDS):
        killed.run()
        with rocketcompat.open(tmp_path, mode="w", config=CONFIGS[kind], background=False) as store:
            assert store.problems == []
        _check_stack(killed)
    assert killed.promises, "nothing was acknowledged in any round"


def _check_stack(killed: Killed) -> None:
    vfs, root = OsVfs(), str(killed.root)
    records = read_log(vfs, root, CONFIG.mapped_file_size_commit_log).records
    found = [
        Found(killed.book.by_body.get(r.body), r.topic, r.queue_id, r.physical_offset, r.body, "ok")
        for r in records
    ]
    killed.check(found)
    units = {(r.topic, r.queue_id, r.queue_offset): (r.physical_offset, r.size) for r in records}
    assert len(units) == len(records), "a queue offset was given twice"
    shown = {(*q, n): unit for q, us in read_queues(vfs, root).items() for n, unit in us.items()}
    assert shown == units, "the queues have other units than the log"
    items = [(key, r.physical_offset) for r in records for key in r.key_hashes]
    index = read_index(vfs, root, CONFIG.max_hash_slot_num, CONFIG.max_index_num, closed=True)
    assert sorted(index.elements()) == sorted(items), "the index has other items than the log"
    rows = read_shards(vfs, f"{root}/tube", killed.book, damage_allowed=False)
    for topic in (TOPIC, OTHER):
        for queue_id in range(PARTITIONS):
            place = (topic, queue_id)
            have = [row.body for row in rows if (row.topic, row.partition) == place]
            want = [r.body for r in records if (r.topic, r.queue_id) == place]
            assert have == want, f"shard {topic} has other messages in {queue_id} than the log"
