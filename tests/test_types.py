"""Type checkers find what a caller gets wrong: each line of `MISTAKES`, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
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
    polled = store.consumer(None, "t", session_timeout="10s").poll(max_bytes="1MB", timeout="1s")
with rocketcompat.open("root", mode="w") as log:
    put = log.put_message(rocketcompat.Message("t", b"x", tags="a", keys=["k"]))
    found = log.get_message("t", 0, put.queue_offset)
    log.wait_dispatched(put.physical_offset, timeout="1s")
    log.put_message(rocketcompat.Message("t", born_timestamp="-2h"))
options = tubestore.StoreOptions(segment_size_bytes="1GB", sync_after_ms="10s")
size = options.segment_size_bytes + options.sync_after_ms
bounds = tubestore.TopicOptions(max_age_ms="7d", max_bytes="10GB")
config = rocketcompat.MessageStoreConfig(max_message_size="4MiB")
size = config.max_message_size + 1
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
tubestore.StoreOptions(segment_size_bytes=1.5)
options.segment_size_bytes.upper()
"""


HERE = Path(__file__).parents[1]


def run_mypy(program: Path) -> tuple[set[int], str]:
    """Return the lines with an error, and what was printed."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(HERE / "pyproject.toml")]
    printed = run([*command, "--cache-dir", str(program.parent / "cache"), str(program)])
    return {int(n) for n in re.findall(rf"{program}:(\d+): error", printed)}, printed


def run_pyright(program: Path) -> tuple[set[int], str]:
    """As `run_mypy`, with the settings that pyright has by itself."""
    settings = {
        "typeCheckingMode": "standard",
        "extraPaths": [str(HERE)],
        "include": [str(program)],
    }
    config = program.parent / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    printed = run([*command, "--project", str(config)])
    return {int(n) for n in re.findall(rf"{program}:(\d+):\d+ - error", printed)}, printed


def run(command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.gate
@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_a_type_checker_finds_each_planted_mistake_and_nothing_in_correct_calls(
    tmp_path: Path, check: Callable[[Path], tuple[set[int], str]]
) -> None:
    calls, mistakes = CALLS.strip().splitlines(), MISTAKES.strip().splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join([*calls, *mistakes, ""]))
    found, printed = check(program)
    first = len(calls) + 1
    assert found == set(range(first, first + len(mistakes))), printed
