"""A store of many records, scanned as columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record.arrow import RECORD_SCHEMA
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=20_000, mapped_file_size_consume_queue=400, max_hash_slot_num=64,
    max_index_num=2000, layouts=frozenset({"consume_queue", "index"}), compat="5.3.3",
    max_topic_length=255,
    max_transfer_count_on_message_in_memory=10_000, max_transfer_count_on_message_in_disk=10_000,
    max_transfer_bytes_on_message_in_memory=1 << 30, max_transfer_bytes_on_message_in_disk=1 << 30,
)  # fmt: skip

COUNT = 300


def opened(root: Path, **options: Any) -> DefaultMessageStore:
    return rocketcompat.open(root, mode="w", config=CONFIG.changed(**options), background=False)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Plain records, some of version 2, and some with IPv6 hosts; in several files."""
    with opened(tmp_path) as store:
        for n in range(COUNT):
            store.put_message(
                Message(
                    "T" if n % 7 else "long" * 40, b"body" * (n % 40), queue_id=n % 3, tags="t",
                    keys=[f"k{n}", "all", f"m{n % 5}"], flag=n,
                    born_host="[::1]:5" if n % 11 == 0 else "10.0.0.1:7",
                    properties={"UNIQ_KEY": f"u{n}"},
                )
            )  # fmt: skip
        dispatcher_of(store).dispatch_pending()
        yield store


def as_rows(batches: Any) -> list[dict[str, Any]]:
    return pa.Table.from_batches(batches, RECORD_SCHEMA).to_pylist()


def assert_same(store: DefaultMessageStore, row: dict[str, Any]) -> None:
    """A row says what the record at its place says when it is decoded alone."""
    record = store.look_message(row["physical_offset"])
    said = {
        "total_size": record.size, "queue_id": record.queue_id, "flag": record.flag,
        "queue_offset": record.queue_offset, "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp, "store_timestamp": record.store_timestamp,
        "born_host": record.born_host_bytes, "store_host": record.store_host_bytes,
        "reconsume_times": record.reconsume_times, "topic": record.topic, "body": record.body,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc, "properties": record.properties_text.encode(),
    }  # fmt: skip
    assert {name: row[name] for name in said} == said
