"""Kafka's format: bytes by its specification, what a kill leaves, and Kafka's own tools on it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from bench.layouts.kafka_format import KafkaFormat, encode, read_varint, values, varint
from bench.layouts.layout import Durability

TIME = 1_700_000_000_000


def opened(root: Path, partitions: int = 2, durability: Durability = "page_cache") -> KafkaFormat:
    return KafkaFormat(root, topics=1, partitions=partitions, durability=durability)


def table(bodies: list[bytes], partition: int, time_ms: int) -> pa.Table:
    count = len(bodies)
    return pa.table(
        {
            "topic": pa.array([0] * count, pa.int32()),
            "partition": pa.array([partition] * count, pa.int32()),
            "body": pa.array(bodies, pa.binary()),
            "time_ms": pa.array([time_ms] * count),
        }
    )


def everything(layout: KafkaFormat, partition: int) -> list[bytes]:
    rows, _ = layout.read(0, partition, None, 1_000_000, lean=True)
    return layout.bodies(rows)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -65, 300, 1 << 20, -(1 << 31), (1 << 31) - 1])
def test_a_varint_comes_back(value: int) -> None:
    data = b"?" + varint(value)
    assert read_varint(data, 1) == (value, len(data))


def test_a_batch_has_the_bytes_of_the_specification() -> None:
    batch = encode(7, [b"ab", b""], 5)
    head = struct.unpack_from(">qiibIhiqqqhii", batch)
    assert head[0] == 7
    assert head[1] == len(batch) - 12
    assert head[2:4] == (0, 2)
    assert head[5:] == (0, 1, 5, 5, -1, -1, -1, 2)
    assert batch[61:] == b"\x10\0\0\0\x01\x04ab\0" + b"\x0c\0\0\x02\x01\0\0"
    assert values(batch) == [b"ab", b""]


def test_the_checksum_is_castagnoli_whichever_library_it_is_from() -> None:
    import crcmod.predefined

    from bench.layouts import kafka_format

    slow = crcmod.predefined.mkCrcFun("crc-32c")
    assert slow(b"123456789") == kafka_format._crc(b"123456789") == 0xE3069283
    batch = encode(0, [b"body"], 5)
    assert int.from_bytes(batch[17:21], "big") == slow(batch[21:])


def test_messages_come_back_after_a_close_and_from_every_position(tmp_path: Path) -> None:
    bodies = [b"%d" % n * (n % 50) for n in range(2000)]
    layout = opened(tmp_path)
    for at in range(0, 2000, 100):
        layout.append_batch(table(bodies[at : at + 100], 1, TIME))
    layout.append(0, 1, b"last")
    layout.close()
    layout = opened(tmp_path)
    assert everything(layout, 0) == []
    assert everything(layout, 1) == [*bodies, b"last"]
    for first in (0, 1, 99, 100, 1999):
        rows, position = layout.read(0, 1, first, 2, lean=True)
        assert rows == [*bodies, b"last"][first : first + 2]
        assert position == (first + 2 if first + 2 < 2001 else None)
    layout.append(0, 1, b"later")
    rows, position = layout.follow(0, 1, 2001, 10)
    assert (rows, position) == ([b"later"], 2002)
    layout.close()


@pytest.mark.parametrize("lost", [1, 30, 61, 80])
def test_a_torn_batch_is_cut_off_after_a_kill(lost: int, tmp_path: Path) -> None:
    layout = opened(tmp_path)
    for number in range(300):
        layout.append(0, 0, b"%100d" % number)
    layout._files.close()  # a kill: no marker of a close
    log = tmp_path / "topic00000-0" / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - lost)
    layout = opened(tmp_path)
    assert everything(layout, 0) == [b"%100d" % number for number in range(299)]
    layout.append(0, 0, b"next")
    assert everything(layout, 0)[-1] == b"next"
    layout.close()


def test_a_flipped_bit_is_found_by_an_opening_after_a_kill_and_by_a_scan(tmp_path: Path) -> None:
    layout = opened(tmp_path)
    for number in range(10):
        layout.append(0, 0, b"%100d" % number)
    log = tmp_path / "topic00000-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-5] ^= 1
    log.write_bytes(data)
    with pytest.raises(ValueError, match="topic00000-0: a batch with another checksum"):
        list(layout.scan(verify=True))
    assert len(list(layout.scan(verify=False))) == 10
    layout._files.close()
    layout = opened(tmp_path)
    assert len(everything(layout, 0)) == 9
    layout.close()


def test_a_time_finds_the_first_message_of_its_batch(tmp_path: Path) -> None:
    layout = opened(tmp_path)
    for number in range(100):
        layout.append_batch(table([b"%200d" % number] * 10, 0, TIME + 10 * number))
    for number in (0, 1, 50, 99):
        assert layout.offset_at(0, 0, TIME + 10 * number) == 10 * number
        assert layout.offset_at(0, 0, TIME + 10 * number - 9) == 10 * number
    assert layout.offset_at(0, 0, TIME + 10_000) == 1000
    layout.close()


def test_segments_roll_and_the_oldest_go(tmp_path: Path) -> None:
    class Small(KafkaFormat):
        segment_bytes = 10_000

    layout = Small(tmp_path, topics=1, partitions=1, durability="page_cache")
    bodies = [b"%100d" % number for number in range(1000)]
    for at in range(0, 1000, 10):
        layout.append_batch(table(bodies[at : at + 10], 0, TIME))
    assert everything(layout, 0) == bodies
    layout.retain(30_000)
    kept = everything(layout, 0)
    assert 250 < len(kept) < 400
    assert kept == bodies[-len(kept) :]
    layout.close()
    assert len(list(tmp_path.rglob("*.log"))) < 6
    layout = Small(tmp_path, topics=1, partitions=1, durability="page_cache")
    assert everything(layout, 0) == kept
    layout.close()
