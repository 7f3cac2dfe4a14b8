"""Both sides of the HA protocol replay what the real classes sent each other, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rocketcompat.ha.frames import FRAME_HEADER
from rocketcompat.ha.master import Acknowledge, MasterSide, Request
from rocketcompat.ha.positions import Span, start_for
from rocketcompat.ha.slave import Body, Fault, SlaveSide
from tests.support.golden import ROCKET_VERSIONS, Golden, unpack

FILE_SIZE = 4096


@pytest.fixture(params=ROCKET_VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack("rocketmq", request.param, "ha-replication", tmp_path)


def bytes_from(golden: Golden, side: str) -> bytes:
    rows = golden.rows("transcript", **{"from": side})
    return b"".join(bytes.fromhex(row["bytes"]) for row in rows if "bytes" in row)


def log_of(root: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}


def test_a_slave_that_is_given_the_real_masters_bytes_has_the_real_slaves_log(
    golden: Golden,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, stream = random.Random(seed), bytes_from(golden, "master")
    side, log, end = SlaveSide(0, 0.0), bytearray(), None
    reports = bytearray(side.data_to_send(0.0))
    while stream:
        size = rng.choice((1, 5, 12, 100, 4000))
        part, stream = stream[:size], stream[size:]
        for event in side.receive(part, 0.0):
            assert not isinstance(event, Fault)
            if end is None:
                end = first = event.offset
            assert event.offset == end
            if isinstance(event, Body):
                log += event.data
                end += len(event.data)
            side.stored(end)
            reports += side.data_to_send(0.0)
    assert end is not None
    files = log_of(golden.slave)
    assert first == min(files)
    joined = b"".join(files[start] for start in sorted(files))
    assert joined[: len(log)] == log
    assert not any(joined[len(log) :])
    # The real slave's last report is the log's end as well.
    assert bytes_from(golden, "slave")[-8:] == reports[-8:]


def test_a_master_that_is_given_the_real_slaves_reports_sends_the_real_masters_frames(
    golden: Golden,
) -> None:
    files = log_of(golden.store)
    joined = b"".join(files[start] for start in sorted(files))
    real = bytes_from(golden, "master")
    side, sent, now = MasterSide(0.0), bytearray(), 0.0
    (request,) = side.receive(bytes_from(golden, "slave")[:8], now)
    assert request == Request(0)
    size_so_far = next(
        row for row in golden.rows("transcript", **{"from": "master"}) if "bytes" in row
    )
    first = FRAME_HEADER.unpack_from(bytes.fromhex(size_so_far["bytes"]))
    answer = start_for(0, Span(0, first.offset + first.body_size, FILE_SIZE), full=False)
    assert answer.offset == first.offset
    side.start_at(first.offset, now)
    while len(sent) < len(real):
        header = FRAME_HEADER.unpack_from(real, len(sent))
        assert side.next_offset == header.offset
        sent += side.frame(header.body_size, now)
        sent += joined[header.offset : header.offset + header.body_size]
    assert sent == real
    reports = bytes_from(golden, "slave")[8:]
    for begin in range(0, len(reports), 8):
        (event,) = side.receive(reports[begin : begin + 8], now)
        assert isinstance(event, Acknowledge)
    assert side.acknowledged == int.from_bytes(reports[-8:], "big")
