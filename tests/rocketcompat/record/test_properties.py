"""The names that RocketMQ gives a meaning, and the keys of a message."""

from __future__ import annotations

import doctest
import random

import numpy as np
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.formats import parse_properties
from rocketcompat.record import properties
from rocketcompat.record.codec import encode_one
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.prepare import prepare
from rocketcompat.record.properties import keys_of


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(properties).failed == 0


@pytest.mark.parametrize("texts", [
    ["KEYS\x01a b"], ["UNIQ_KEY\x01u"], ["KEYS\x01 \x02UNIQ_KEY\x01u"], ["TAGS\x01t", ""],
    ["KEYS\x01a", "UNIQ_KEY\x01u", "KEYS\x01ä  b \x02UNIQ_KEY\x01u v"], ["KEYS\x01a\x02KEYS\x01b"],
])  # fmt: skip
def test_many_records_have_the_keys_that_each_has(texts: list[str]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed).choices(texts, k=20)
    data, starts = b"", []
    for text in chosen:
        starts.append(len(data))
        one = prepare(Message("T", b"x", properties=text), MessageStoreConfig())
        data += encode_one(one, 0, len(data), 1)
    records = decode_columns(data, np.array(starts), 0)
    raw = records.property_bytes.tobytes()
    places = zip(*(column.tolist() for column in records.key_places), strict=True)
    found = [(row, raw[start:end].decode()) for row, start, end in places]
    assert found == [
        (row, key) for row, text in enumerate(chosen) for key in keys_of(parse_properties(text))
    ]
