"""Which of an index entry and a record counts: a row of the table for every pair of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.tube import encode_row, make_row
from tubestore.record.attributes import encode_prefix
from tubestore.record.evidence import are_expired, are_possible, is_lost, is_of_store, judge
from tubestore.record.layouts import (
    DATA_HEADER,
    FLAG_HAS_ATTRIBUTES,
    INDEX_ENTRY,
    RECORD_SIZE_MAX,
    key_code_of,
)
from tubestore.record.records import ENTRY_SIZE

INDEX_OFFSET, DATA_OFFSET = 56, 122
TIME = 1_700_000_000_000
PAYLOAD = encode_prefix("red", TIME) + b"body"
ROW = make_row(PAYLOAD)._replace(
    partition_id=2, key_code=key_code_of("red"), received_time=TIME, flag=FLAG_HAS_ATTRIBUTES
)
(_HEADER, _), _ENTRY = encode_row(ROW, INDEX_OFFSET, DATA_OFFSET)
HEADER, ENTRY = DATA_HEADER.unpack_from(_HEADER), INDEX_ENTRY.unpack_from(_ENTRY)
ENTRYS, RECORDS = True, False

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "the place right, another own offset": (
        {"partition_id": 2},
        {"partition_id": 3, "queue_logic_offset": 28},
        ENTRYS,
    ),
    "the size wrong, another own offset": (
        {"data_size": 7},
        {"partition_id": 3, "queue_logic_offset": 28},
        ENTRYS,
    ),
    "the size wrong, the own offset right": ({"data_size": 7, "partition_id": 3}, {}, RECORDS),
    "the position wrong, the own offset right": (
        {"data_offset": 7, "partition_id": 3},
        {},
        RECORDS,
    ),
    "the position wrong, another own offset": (
        {"data_offset": 7, "partition_id": 3},
        {"queue_logic_offset": 28},
        RECORDS,
    ),
    "both right, nothing proves a partition": ({"partition_id": 3}, {}, RECORDS),
    "both right, the payload proves the record's key": ({"key_code": 77}, {}, RECORDS),
    "both right, the payload proves the entry's key": ({}, {"key_code": 77}, ENTRYS),
    "both right, the payload proves the record's time": ({"received_time": 1}, {}, RECORDS),
    "both right, the payload proves the entry's time": ({}, {"received_time": 1}, ENTRYS),
    "the record has a partition of another store": ({}, {"partition_id": 20_000}, ENTRYS),
    "the entry has a partition of another store": (
        {"partition_id": 20_000},
        {"queue_logic_offset": 28},
        RECORDS,
    ),
}


@pytest.mark.parametrize(("entry", "header", "counts"), CASES.values(), ids=CASES)
def test_what_proves_itself_counts(
    entry: dict[str, Any], header: dict[str, Any], counts: bool
) -> None:
    said, record = ENTRY._replace(**entry), HEADER._replace(**header)
    judged = judge(
        said, record, PAYLOAD, store_id=0, index_offset=INDEX_OFFSET, data_offset=DATA_OFFSET
    )
    names = ("partition_id", "key_code", "received_time")
    source = said if counts is ENTRYS else record
    found = INDEX_ENTRY.unpack_from(judged.entry)
    assert judged.header_is_damaged is counts
    assert [getattr(found, n) for n in names] == [getattr(source, n) for n in names]
    assert (found.data_offset, found.data_size) == (DATA_OFFSET, ENTRY.data_size)
    for name, value in entry.items():
        if value != getattr(record, name, ENTRY._asdict().get(name)):
            assert f"{name} {value}, in the record" in judged.text


@pytest.mark.parametrize("kept", range(ENTRY_SIZE))
def test_the_first_bytes_of_an_entry_and_zeros_are_a_write_that_was_lost(kept: int) -> None:
    assert is_lost(_ENTRY[:kept] + bytes(ENTRY_SIZE - kept), _ENTRY, 4 * ENTRY_SIZE)


def test_zeros_up_to_the_border_of_a_sector_are_a_write_that_was_lost() -> None:
    assert is_lost(bytes(8) + _ENTRY[8:], _ENTRY, 18 * ENTRY_SIZE)  # 504, and 512 is the border
    assert not is_lost(bytes(8) + _ENTRY[8:], _ENTRY, 17 * ENTRY_SIZE)


def test_other_values_are_no_write_that_was_lost() -> None:
    other = INDEX_ENTRY.pack(**ENTRY._replace(partition_id=3)._asdict())
    assert not is_lost(other, _ENTRY, 4 * ENTRY_SIZE)


@pytest.mark.parametrize(
    ("changes", "possible", "expired"),
    [
        ({}, True, True),
        ({"data_offset": 200}, True, False),
        ({"data_offset": 200 - 53, "data_size": 53}, True, True),
        ({"data_offset": 201 - 53, "data_size": 53}, True, False),
        ({"data_offset": -1}, False, False),
        ({"data_offset": 2**63 - 1}, True, False),
        ({"data_offset": 0, "data_size": 0}, False, False),
        ({"data_size": 52}, False, False),
        ({"data_offset": 0, "data_size": RECORD_SIZE_MAX + 1}, False, False),
        ({"partition_id": -1}, False, True),
    ],
)
def test_what_an_entry_alone_shows(changes: dict[str, int], possible: bool, expired: bool) -> None:
    entry = ENTRY._replace(data_offset=0, data_size=60)._replace(**changes)
    entries = np.frombuffer(INDEX_ENTRY.pack(**entry._asdict()), INDEX_ENTRY.dtype)
    assert are_possible(entries).tolist() == [possible]
    assert are_expired(entries, 200).tolist() == [expired]


def test_a_partition_is_of_the_store_that_its_id_names() -> None:
    assert [is_of_store(id, 2) for id in (19_999, 20_000, 29_999, 30_000)] == [0, 1, 1, 0]
    assert is_of_store(np.array([-1, 0, 9_999]), 0).tolist() == [False, True, True]
