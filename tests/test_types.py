"""A type checker finds what a caller gets wrong: each line of `MISTAKES`, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import rocketcompat
import tubestore

with tubestore.open("root", durability="fsync", segment_size_bytes="1GB") as store:
    topic = store.create_topic("t", partitions=4, max_age="7d", max_bytes="10GB")
    ack = topic.append(bytearray(b"x"), key=b"k", received_time="-2h")
    acks = topic.append_batch([{"body": b"x"}, {"body": b"y", "key": "k"}])
    acks = store.append_batch({"topic": ["t"], "body": [b"x"]})
    page = topic.read(ack.partition, ack.offset, limit=10, start="2h")
    topic.append_batch(page)
    bodies = [message.body for message in page] + [page[0].body]
    names = [name.upper() for name in store]
    hour = page[0].received_time.hour + page[0].received_time_ms
with rocketcompat.open("root", mode="w") as log:
    put = log.put_message(rocketcompat.Message("t", b"x", tags="a", keys=["k"]))
    found = log.get_message("t", 0, put.queue_offset)
"""
MISTAKES = """
tubestore.open("root", durabilty="fsync")
tubestore.open("root", durability="disk")
tubestore.open("root", mode="a")
tubestore.open("root", flush_workers="two")
topic.append("text")
topic.append(b"x", attributes={"k": 5})
topic.append_batch([b"x"])
topic.read(0, limit="10")
topic.read(0, offset="newest")
page[0].received_time.upper()
store["t"].apend(b"x")
rocketcompat.open("root").put_message(rocketcompat.Message("t", b"x"))
log.put_message(b"x")
rocketcompat.MessageStoreConfig(flush_disk_type="SYNC")
"""


@pytest.mark.gate
def test_mypy_finds_each_planted_mistake_and_nothing_in_correct_calls(tmp_path: Path) -> None:
    calls, mistakes = CALLS.strip().splitlines(), MISTAKES.strip().splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join([*calls, *mistakes, ""]))
    here = Path(__file__).parents[1]
    command = [sys.executable, "-m", "mypy", "--config-file", str(here / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), str(program)],
        cwd=here, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    found = {int(n) for n in re.findall(rf"{program}:(\d+): error", done.stdout)}
    first = len(calls) + 1
    assert found == set(range(first, first + len(mistakes))), done.stdout + done.stderr
