"""A log record becomes a tube record and comes back equal (decisions.md D2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.formats import TRANSACTION_NOT, TRANSACTION_PREPARED
from rocketcompat.options import LAYOUTS
from rocketcompat.record.codec import decode_one, encode_one
from rocketcompat.record.columns import RecordColumns, decode_columns
from rocketcompat.record.prepare import prepare
from rocketcompat.record.verify import sound_chain
from rocketcompat.shards.record import RESERVED, fits, from_tube, to_tube
from tests.support.golden import ROCKET_VERSIONS, unpack
from tubestore.core.java_hash import java_hash
from tubestore.errors import InvalidName
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.attributes import parse_text, split_payload
from tubestore.record.layouts import DATA_HEADER, PAYLOAD_SIZE_MAX
from tubestore.record.records import encode_columns

SCENARIOS = ["basic", "keys-tags", "odd", "ipv6", "transactions", "lmq", "compressed"]


def log_files(version: str, scenario: str, directory: Path) -> list[tuple[bytes, int]]:
    store = unpack("rocketmq", version, scenario, directory).store
    files = sorted((store / "commitlog").iterdir())
    return [(f.read_bytes(), int(f.name)) for f in files if f.stat().st_size < 1 << 24]


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_golden_record_survives_the_round_trip(
    version: str, scenario: str, tmp_path: Path
) -> None:
    count = 0
    for data, base in log_files(version, scenario, tmp_path):
        starts = sound_chain(data, 0, base, len(data)).starts
        if not len(starts):
            continue
        log = RecordColumns(data, starts, base)
        batch = encode_columns(to_tube(log, np.arange(len(log))))
        bounds = [*batch.starts.tolist(), len(batch.data)]
        raw = batch.data.tobytes()
        for start, low, high in zip(starts.tolist(), bounds, bounds[1:], strict=False):
            expected = decode_one(data, start)
            header = DATA_HEADER.unpack_from(raw, low)
            parts = split_payload(raw[low + DATA_HEADER.size : high])
            assert parts is not None
            found = from_tube(
                expected.topic, header.partition_id, header.received_time, header.msg_id, *parts
            )
            assert found == expected
            count += 1
    assert count > 5


def test_a_tube_reader_sees_body_tag_key_code_and_plain_properties(tmp_path: Path) -> None:
    data, base = log_files("4.9.8", "keys-tags", tmp_path)[0]
    starts = sound_chain(data, 0, base, len(data)).starts
    log = RecordColumns(data, starts, base)
    columns = to_tube(log, np.arange(len(log)))
    batch = encode_columns(columns)
    raw = batch.data.tobytes()
    bounds = [*batch.starts.tolist(), len(raw)]
    tagged = 0
    for row, start in enumerate(starts.tolist()):
        record = decode_one(data, start)
        parts = split_payload(raw[bounds[row] + DATA_HEADER.size : bounds[row + 1]])
        assert parts is not None
        text, body = parts
        attributes = parse_text(text)
        assert body == record.body
        tag = record.properties.get("TAGS")
        expected = java_hash(tag) if tag else -1
        assert columns.key_codes[row] == expected
        if tag and tag.isalnum():
            tagged += 1
            assert attributes["$msgType$"] == tag
        for name, value in record.properties.items():
            if name.isalnum() and value.isalnum():
                assert attributes[name] == value
    assert tagged > 5
    assert TRANSACTION_NOT == 0


def test_the_reserved_records_need_no_base64_padding() -> None:
    assert [layout.size % 3 for layout in RESERVED] == [0, 0, 0, 0]


def test_only_what_a_shard_can_hold_fits() -> None:
    queues = PARTITIONS_PER_STORE**2
    largest = PAYLOAD_SIZE_MAX - (1 << 16)
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4 * PAYLOAD_SIZE_MAX,
        max_message_size=2 * PAYLOAD_SIZE_MAX,
        layouts=LAYOUTS,
    )
    cases = [
        (Message("T", b"x"), True),
        (Message("T", b"x", sys_flag=TRANSACTION_PREPARED), False),
        (Message("T", b"x", queue_id=queues - 1), True),
        (Message("T", b"x", queue_id=queues), False),
        (Message("T", bytes(largest)), True),
        (Message("T", bytes(largest + 1)), False),
        (Message("%RETRY%g", b"x"), True),
        (Message("a\x01b", b"x"), False),
    ]
    data, starts = b"", []
    for message, _ in cases:
        starts.append(len(data))
        data += encode_one(prepare(message, config), 0, len(data), 1)
    refused: list[InvalidName] = []
    found = fits(decode_columns(data, np.array(starts), 0), refused.append)
    assert found.tolist() == [wanted for _, wanted in cases]
    assert len(refused) == 1
