"""One table of a message's columns: rows, Arrow tables, the command line and puts follow it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.cli.options import MESSAGE_COLUMNS as SHOWN
from rocketcompat.formats import GIVEN_COLUMNS, MESSAGE_COLUMNS
from rocketcompat.inspect.dump import rows_of
from rocketcompat.record.codec import decode_one, encode_one
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.given import NUMBERS, given_in
from rocketcompat.record.message_table import table_of
from rocketcompat.record.prepare import prepare
from rocketcompat.record.rows import MESSAGE_SCHEMA, row_of
from tubestore.errors import InvalidMessage


def test_a_record_its_row_and_its_line_of_a_table_are_the_same() -> None:
    message = Message(
        "T", b"body", tags="t", keys="a b", queue_id=3, flag=7, sys_flag=9, born_timestamp=11,
        born_host="10.0.0.1:1", store_host="10.0.0.2:2", reconsume_times=5,
        prepared_transaction_offset=13,
    )  # fmt: skip
    raw = encode_one(prepare(message, MessageStoreConfig()), 17, 0, 19)
    record, records = decode_one(raw), decode_columns(raw, np.zeros(1, np.int64), 0)
    row = row_of(record)
    assert row["store_size"] == len(raw)
    assert (row["queue_offset"], row["store_timestamp"], row["body"]) == (17, 19, b"body")
    assert list(row) == MESSAGE_SCHEMA.names
    (line,) = table_of(records).to_pylist()
    assert line | {"properties": dict(line["properties"])} == row
    assert next(iter(rows_of(records))) == row


def test_the_columns_and_their_order_are_those_that_files_and_programs_know() -> None:
    names = [
        "topic", "queue_id", "queue_offset", "physical_offset", "store_size", "version", "flag",
        "sys_flag", "born_timestamp", "store_timestamp", "born_host", "store_host",
        "reconsume_times", "prepared_transaction_offset", "body_crc", "properties", "body",
        "msg_id", "state",
    ]  # fmt: skip
    assert [column.name for column in MESSAGE_COLUMNS] == names
    assert [column.name for column in SHOWN] == names
    types = [str(kind) for kind in MESSAGE_SCHEMA.types]
    assert types[:4] == ["string", "int32", "int64", "int64"]
    assert types[8:11] == ["int64", "int64", "string"]
    assert types[14:17] == ["int32", "map<string, string>", "large_binary"]


def test_what_may_be_given_is_what_a_message_has() -> None:
    own = {field.name for field in fields(Message)}
    assert set(GIVEN_COLUMNS) | {"tags", "keys", "delay_level"} == own
    assert NUMBERS == ("flag", "sys_flag", "reconsume_times", "prepared_transaction_offset")
    with pytest.raises(InvalidMessage, match="unknown columns"):
        given_in({"topic": ["T"], "queue_offset": [1]})
