"""The columns that a reader wants."""

from __future__ import annotations

import pytest

from tests.support.engine.decoded import decoded
from tests.support.tube import encode_rows, make_rows
from tubestore.record.records import HEADER_SIZE


@pytest.mark.parametrize("columns", [["body"], ["state"], ["offset", "body"], ["attributes"], []])
def test_only_the_columns_asked_for_are_there(columns: list[str]) -> None:
    batch = encode_rows(make_rows(5), 0, 0)
    for row in decoded(batch.entries, batch.data.tobytes(), columns):
        assert list(row) == columns


def test_a_bad_checksum_is_a_state_only_when_one_asks() -> None:
    batch = encode_rows(make_rows(3), 0, 0)
    data = bytearray(batch.data.tobytes())
    data[HEADER_SIZE] ^= 1
    assert [r["state"] for r in decoded(batch.entries, bytes(data))] == ["ok"] * 3
    states = [r["state"] for r in decoded(batch.entries, bytes(data), verify=True)]
    assert states == ["bad_checksum", "ok", "ok"]
