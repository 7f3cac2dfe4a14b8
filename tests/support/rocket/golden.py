"""Golden RocketMQ stores opened by our store, told in the words of ``expected.jsonl``."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import rocketcompat
from rocketcompat import MessageStoreConfig
from rocketcompat.commitlog.reads import record_at
from rocketcompat.formats import decode_host
from rocketcompat.messages import MessageRecord
from rocketcompat.queues.recovery import sound_pieces
from rocketcompat.record.codec import decode_one
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import Answers, Golden
from tests.support.rocket.inside import log_of, queues_of
from tubestore.errors import TubeStoreError

Row = dict[str, Any]
#: Bodies above this length are given by their digest.
BODY_MAX = 4096


def config_of(answers: Answers, **options: Any) -> MessageStoreConfig:
    """The options that the scenario was written with, without the tube shards."""
    given = {k: v for k, v in answers.meta["config"].items() if not k.startswith("x.")}
    config = MessageStoreConfig.from_camel(given, ignore_unknown=True)
    compat = "5.3.3" if answers.version.startswith("5") else "4.9.8"
    layouts = frozenset({"consume_queue", "index"})
    return config.changed(compat=compat, layouts=layouts, **options)


def open_golden(golden: Golden, mode: str = "w", **options: Any) -> DefaultMessageStore:
    """Open a golden store, everything dispatched, no threads."""
    return rocketcompat.open(golden.store, mode, config_of(golden, **options), background=False)  # type: ignore[arg-type]


def message_row(record: MessageRecord) -> Row:
    """A record in upstream's names."""
    row: Row = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": record.born_host,
        "storeHost": record.store_host,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "properties": record.properties,
        "bodyLength": len(record.body),
        "msgId": record.msg_id,
    }
    if len(record.body) > BODY_MAX:
        row["bodySha256"] = hashlib.sha256(record.body).hexdigest()
    else:
        row["body"] = base64.b64encode(record.body).decode()
    return row


def expected_message(row: Row) -> Row:
    """An expected row, reduced to what ``message_row`` gives."""
    names = {"topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "sysFlag", "flag",
             "bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes",
             "preparedTransactionOffset", "bodyCRC", "properties", "bodyLength", "msgId", "body",
             "bodySha256"}  # fmt: skip
    kept = {name: value for name, value in row.items() if name in names}
    kept["properties"] = kept.get("properties") or {}
    for name in ("bornHost", "storeHost"):
        kept[name] = same_host(kept[name])
    if "body" in kept and "bodySha256" in kept:
        del kept["body"]
    return kept


def same_host(text: str) -> str:
    """A host as we write it: IPv6 shortened."""
    from rocketcompat.formats import encode_host

    return decode_host(encode_host(text))


def queue_ends(store: DefaultMessageStore) -> dict[tuple[str, int], tuple[int, int]]:
    """Least and next offset of every queue."""
    return {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in queues_of(store)}


def units_of(store: DefaultMessageStore) -> Iterator[Row]:
    """Every unit of every queue, with the record that it leads to (None if it leads to none)."""
    for queue in queues_of(store):
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            record: MessageRecord | None
            try:
                record = record_at(log_of(store), unit.physical_offset)
            except TubeStoreError:
                record = None
            yield {
                "queue": f"{queue.topic}/{queue.queue_id}",
                "index": offset,
                "cqPhysicalOffset": unit.physical_offset,
                "cqSize": unit.size,
                "tagsCode": unit.tags_code,
                "record": None if record is None else message_row(record),
            }


def expected_units(answers: Answers) -> list[Row]:
    """The rows of ``units_of`` that the real classes gave."""
    return [
        {
            **{name: row.get(name) for name in
               ("queue", "index", "cqPhysicalOffset", "cqSize", "tagsCode")},
            "record": None if "error" in row else expected_message(row),
        }
        for row in answers.expected(type="message")
    ]  # fmt: skip


def records_of(store: DefaultMessageStore) -> list[tuple[int, int]]:
    """Place and size of every record of the log, in order."""
    found = []
    for piece in sound_pieces(log_of(store), store.min_physical_offset, 1 << 62):
        for start in piece.starts.tolist():
            record = decode_one(piece.data, start, check_crc=False)
            found.append((piece.base + start, record.size))
    return found
