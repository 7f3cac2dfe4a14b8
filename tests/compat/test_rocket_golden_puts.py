"""What the real stores were given, given to ours at the same times: the same files come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcompat import Message
from rocketcompat.record.codec import encode_one
from rocketcompat.record.prepare import prepare
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden_puts import (
    Again,
    batch_of,
    files_of,
    message_of,
    records_by_place,
)
from tests.support.rocket.golden import config_of
from tubestore.errors import InvalidMessage

#: Plain puts only; of both versions, and of the newer one alone.
BOTH = ("basic", "rolled", "keys-tags", "transactions", "syncflush", "compressed")
NEWER = ("v2-topics",)
#: Of both, with messages that ours refuses; and of the newer version.
ONE_BY_ONE = [
    *((version, scenario) for version in ROCKET_VERSIONS for scenario in ("ipv6", "odd", "large")),
    ("5.3.3", "propcrc"),
]
CASES = [
    *((version, scenario) for version in ROCKET_VERSIONS for scenario in BOTH),
    *(("5.3.3", scenario) for scenario in NEWER),
]


@pytest.mark.parametrize(("version", "scenario"), CASES)
def test_single_puts_make_the_same_log(
    golden: GoldenFactory, tmp_path: Path, version: str, scenario: str
) -> None:
    theirs = golden("rocketmq", version, scenario)
    again = Again(theirs, tmp_path / "again", max_topic_length=255)
    for row in theirs.puts():
        if row["in"]["op"] == "put":
            assert again.put(row).msg_id == row["out"]["msgId"]
    end = again.store.max_physical_offset
    again.close()
    assert log_bytes(again.root, end) == log_bytes(theirs.store, end)
    if all(row["in"]["op"] == "put" for row in theirs.puts()):
        assert files_of(again.root, "commitlog") == files_of(theirs.store, "commitlog")
        assert files_of(again.root, "consumequeue") == files_of(theirs.store, "consumequeue")


def log_bytes(root: Path, end: int) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


@pytest.mark.parametrize(("version", "scenario"), ONE_BY_ONE)
def test_a_record_encoded_with_the_same_place_and_time_is_the_same_bytes(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    store = golden("rocketmq", version, scenario)
    config = config_of(store)
    theirs = records_by_place(store)
    count = 0
    for row in store.puts():
        given, out = row["in"], row["out"]
        if given["op"] != "put" or out.get("append") != "PUT_OK":
            continue
        if "\0" in given.get("properties", ""):
            with pytest.raises(InvalidMessage):  # refused: it could not be told from a torn one
                prepare(message_of(given), config)
            continue
        prepared = prepare(message_of(given), config)
        raw = encode_one(prepared, out["logicsOffset"], out["wroteOffset"], out["storeTimestamp"])
        assert raw == theirs[out["wroteOffset"]]
        count += 1
    assert count > 5


@pytest.mark.parametrize(
    "scenario", ["basic", "rolled", "v2-topics", "propcrc", "ipv6", "transactions"]
)
def test_the_same_messages_as_columns_are_the_same_bytes(
    golden: GoldenFactory, tmp_path: Path, scenario: str
) -> None:
    store = golden("rocketmq", "5.3.3", scenario)
    rows = [row["in"] for row in store.puts() if row["in"]["op"] == "put"]
    messages = [message_of(row) for row in rows if "\0" not in row["properties"]]
    single = Again(store, tmp_path / "single", max_topic_length=255)
    columns = Again(store, tmp_path / "columns", max_topic_length=255)
    for message in messages:
        single.store.put_message(message)
    columns.store.put_columns(columns_of(messages))
    for again in (single, columns):
        again.close()
    for directory in ("commitlog", "consumequeue"):
        assert files_of(columns.root, directory) == files_of(single.root, directory)


@pytest.mark.parametrize(
    ("version", "scenario"),
    [
        *((version, scenario) for version in ROCKET_VERSIONS for scenario in ("batch", "ipv6")),
        ("5.3.3", "v2-topics"),
    ],
)
def test_batches_and_single_puts_make_the_same_log(
    golden: GoldenFactory, tmp_path: Path, version: str, scenario: str
) -> None:
    theirs = golden("rocketmq", version, scenario)
    again = Again(theirs, tmp_path / "again", max_topic_length=255)
    batches = 0
    for row in theirs.puts():
        given, out = row["in"], row["out"]
        if out["status"] == "MESSAGE_ILLEGAL":
            with pytest.raises(InvalidMessage, match="transaction"):
                again.store.put_messages(batch_of(given))
            continue
        again.at_time_of(row)
        if given["op"] == "put":
            again.store.put_message(again.message(row))
            continue
        batches += 1
        result = again.store.put_messages(batch_of(given))
        assert result.physical_offsets[0] == out["wroteOffset"]
        assert sum(result.sizes) == out["wroteBytes"]
        assert result.queue_offset == out["logicsOffset"]
        assert len(result.physical_offsets) == out["msgNum"]
        assert result.msg_id == out["msgId"]
    assert batches >= 1
    again.check_records()
    again.close()
    assert files_of(again.root, "consumequeue") == files_of(theirs.store, "consumequeue")


FIELDS = ("topic", "body", "queue_id", "properties", "flag", "sys_flag", "born_timestamp",
          "born_host", "store_host", "reconsume_times", "prepared_transaction_offset")  # fmt: skip


def columns_of(messages: list[Message]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        name: [getattr(message, name) for message in messages] for name in FIELDS
    }
    return pa.table(columns)
