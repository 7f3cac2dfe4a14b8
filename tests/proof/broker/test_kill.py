"""A process with a broker, a producer and a consumer, killed: no acknowledged message is missed.

`KILL_ROUNDS` sets how often (default 3); the seed is printed, and `BROKER_SEED` repeats it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 3)

pytestmark = [pytest.mark.gate, pytest.mark.crash]


def child(root: Path, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.proof.broker.child", str(root), str(first)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True,
    )  # fmt: skip


def test_every_acknowledged_message_is_consumed_whenever_the_process_is_killed(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("BROKER_SEED") or random.randrange(1 << 32))
    print("BROKER_SEED", seed)
    chance = random.Random(seed)
    seen: dict[str, set[int]] = {"sent": set(), "got": set()}
    for number in range(ROUNDS + 1):
        is_last = number == ROUNDS
        with child(tmp_path, number * 1_000_000) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("200\n")
            process.stdin.close()
            lines = 0 if is_last else chance.randint(1, 300)
            ended = False
            for count, line in enumerate(process.stdout):
                ended = line.strip() == "end"
                if not ended:
                    kind, text = line.split()
                    seen[kind].add(int(text))
                if not is_last and count == lines:
                    process.kill()
            assert ended or not is_last
    missed = seen["sent"] - seen["got"]
    assert not missed, f"{len(missed)} of {len(seen['sent'])} messages were never consumed"
    assert len(seen["sent"]) >= 200
