"""Records in columns are what one by one reads."""

from __future__ import annotations

import numpy as np

from rocketcompat import Message
from rocketcompat.record import columns
from rocketcompat.record.codec import decode_one
from rocketcompat.record.columns import decode_columns, hash_slices
from tests.support.rocket.files.encoded import record
from tubestore.core.java_hash import java_hash


def test_columns_are_what_one_by_one_reads() -> None:
    messages = [
        Message(
            f"T{i % 3}",
            bytes(i),
            tags=None if i % 4 == 0 else f"tag{i}",
            keys=None if i % 5 == 0 else [f"k{i}", "é"][: 1 + i % 2],
            properties={"UNIQ_KEY": f"{i:032d}"} if i % 2 else None,
            queue_id=i % 7,
            born_host="[::1]:1" if i % 3 == 0 else "1.2.3.4:5",
            store_host="[::2]:1" if i % 2 == 0 else "1.2.3.4:5",
        )
        for i in range(60)
    ]
    data, starts = b"", []
    for number, message in enumerate(messages):
        starts.append(len(data))
        data += record(message, 5000 + len(data), number)
    found = decode_columns(data, np.array(starts), 5000)
    ones = [decode_one(data, start) for start in starts]
    for name in ("queue_id", "queue_offset", "sys_flag", "reconsume_times", "store_timestamp"):
        assert found.column(name).tolist() == [getattr(one, name) for one in ones]
    assert found.bodies().to_pylist() == [one.body for one in ones]
    assert [found.topic_names[code] for code in found.topic_codes] == [one.topic for one in ones]
    assert found.hosts("born_host").to_pylist() == [one.born_host_bytes for one in ones]
    assert found.hosts("store_host").to_pylist() == [one.store_host_bytes for one in ones]
    tags = [one.properties.get("TAGS") for one in ones]
    assert found.tags().to_pylist() == [None if tag is None else tag.encode() for tag in tags]
    assert found.tags_codes().tolist() == [java_hash(tag) if tag else 0 for tag in tags]
    rows, hashes = found.index_keys()
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == [
        (row, abs(java_hash(f"{one.topic}#{key}")))
        for row, one in enumerate(ones)
        for key in [one.properties.get("UNIQ_KEY"), *one.properties.get("KEYS", "").split(" ")]
        if key
    ]


def test_a_key_whose_hash_has_no_absolute_value_hashes_to_zero() -> None:
    text = "polygenelubricants"  # its Java hash is the least int
    assert java_hash(text) == -(1 << 31)
    raw = np.frombuffer(text.encode(), np.uint8)
    assert hash_slices(raw, np.array([0]), np.array([len(text)])).tolist() == [1 << 31]
    assert columns._absolute(np.array([1 << 31], np.uint32)).tolist() == [0]
