"""Bodies that the producer compressed are unpacked for readers, within bounds."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat import Message
from rocketcompat.record.compression import unpack_bodies, unpack_body
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.selected import put


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_compressed_bodies_are_unpacked_when_asked(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    real = golden("rocketmq", version, "compressed")
    stored = command("dump", real.store, "-f", "jsonl").rows
    unpacked = command("dump", real.store, "-f", "jsonl", "--decompress").rows
    packed = 0
    for before, after in zip(stored, unpacked, strict=True):
        body = base64.b64decode(before["body"])
        wanted = unpack_body(body, before["sys_flag"])
        if wanted is None:
            assert after == before | {"state": "still-compressed"}
            continue
        assert after == before | {"body": base64.b64encode(wanted).decode()}
        packed += before["sys_flag"] & 1
    assert packed > 2


def test_a_body_that_contradicts_its_flag_stays_as_it_is(tmp_path: Path, command: Command) -> None:
    flags = [0x1, 0x101, 0x201, 0x301, 0x0]
    bodies = [zlib.compress(b"hello") if flag == 0x301 else b"no archive" for flag in flags]
    messages = [Message("T", b, sys_flag=f) for b, f in zip(bodies, flags, strict=True)]
    put(tmp_path, messages)
    found = command("dump", tmp_path, "-f", "jsonl", "--decompress").rows
    states = ["still-compressed"] * 3 + ["ok"] * 2
    assert [row["state"] for row in found] == states
    assert base64.b64decode(found[3]["body"]) == b"hello"
    assert base64.b64decode(found[0]["body"]) == b"no archive"


def test_a_body_that_would_fill_the_memory_is_left_as_it_is() -> None:
    bomb = zlib.compress(bytes(100_000))
    assert unpack_body(bomb, 1, size_max=99_999) is None
    assert unpack_body(bomb, 1, size_max=100_000) == bytes(100_000)
    framed = pa.compress(bytes(100_000), "zstd", asbytes=True)
    assert unpack_body(framed, 0x201, size_max=99_999) is None


def test_unpacked_bodies_are_in_memory_a_run_at_a_time() -> None:
    texts = [b"%d" % n * 1000 for n in range(10)]
    stored = [zlib.compress(text) if n % 3 else text for n, text in enumerate(texts)]
    stored[4] = b"no archive"
    bodies = pa.array(stored, pa.large_binary())
    flags = np.array([int(n % 3 > 0) for n in range(10)])
    runs = list(unpack_bodies(bodies, flags, run_bytes=2500))
    assert [(rows.start, rows.stop) for rows, _, _ in runs] == [(0, 5), (5, 8), (8, 10)]
    for rows, unpacked, failed in runs:
        expected = [b"no archive" if n == 4 else texts[n] for n in range(10)[rows]]
        assert unpacked.to_pylist() == expected
        assert failed.tolist() == [n == 4 for n in range(10)[rows]]
    alone = [rows.start for rows, _, _ in unpack_bodies(bodies, flags, run_bytes=1)]
    assert alone == [0, 2, 4, 5, 7, 8]  # one that is larger than a run is one by itself
