"""The puts of a golden RocketMQ store, put again by ours at the same times."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch, MessageStoreConfig, PutResult
from rocketcompat.formats import parse_properties
from rocketcompat.record.codec import decode_one
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import Golden, Row
from tests.support.rocket.golden import config_of
from tests.support.rocket.inside import log_of
from tubestore.clock import ManualClock

BORN_HOST, STORE_HOST = "10.1.2.3:45678", "192.168.0.9:10911"


class Again:
    """A store of ours that puts what a real one has put, when it did."""

    def __init__(self, golden: Golden, root: Path, **options: Any) -> None:
        self.golden, self.root = golden, root
        self.clock = ManualClock(0)
        self.config: MessageStoreConfig = config_of(golden, **options)
        self.store: DefaultMessageStore = rocketcompat.open(
            root, "w", self.config, clock=self.clock, background=False
        )
        self.theirs = records_by_place(golden)

    def at_time_of(self, row: Row) -> None:
        """Set the clock to the store time of a put."""
        self.clock.advance(row["out"]["storeTimestamp"] - self.clock.now_ms())

    def message(self, row: Row) -> Message:
        """The message of a put."""
        given = row["in"]
        message = message_of(given)
        if "lz4" in given:  # made by a compressor that is not here
            record = self.theirs[row["out"]["wroteOffset"]]
            size = int.from_bytes(record[84:88], "big")
            message.body = record[88 : 88 + size]
        return message

    def put(self, row: Row, message: Message | None = None) -> PutResult:
        """Put what a row has (or `message`) at its time; it gets the place that the row has."""
        self.at_time_of(row)
        result, out = self.store.put_message(message or self.message(row)), row["out"]
        assert (result.physical_offset, result.queue_offset, result.size) == (
            out["wroteOffset"], out["logicsOffset"], out["wroteBytes"],
        )  # fmt: skip
        return result

    def put_all(self) -> None:
        """Put all rows."""
        for row in self.golden.puts():
            self.put(row)

    def check_records(self) -> None:
        """Compare the records, but for the order of their properties, with the real ones."""
        for place, record in self.theirs.items():
            ours = log_of(self.store).read_at(place, len(record))
            assert in_order_of_names(ours) == in_order_of_names(record)

    def close(self, *directories: str) -> None:
        """Close ours, and compare the files of these directories with the real ones."""
        self.store.close()
        for directory in directories:
            assert files_of(self.root, directory) == files_of(self.golden.store, directory)


def files_of(root: Path, directory: str) -> dict[str, bytes]:
    """Return the files below a directory by their names."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / directory).rglob("*"))
        if path.is_file()
    }


def records_by_place(golden: Golden) -> dict[int, bytes]:
    """Return the bytes of every record of a golden log by its offset."""
    size = golden.meta["config"].get("mappedFileSizeCommitLog", 1 << 30)
    found = {}
    for row in golden.expected():
        if row["type"] == "record":
            place, length = row["physicalOffset"], row.get("size", row.get("storeSize"))
            (path,) = golden.store.glob(f"commitlog*/{place - place % size:020d}")
            with path.open("rb") as file:
                file.seek(place % size)
                found[place] = file.read(length)
    return found


def body_of(given: Row) -> bytes:
    """Return the body that the fields of a put describe."""
    if "text" in given:
        return bytes(given["text"].encode())
    if "body" in given:
        return base64.b64decode(given["body"])
    seed = given.get("seed", 0)
    return bytes((seed + 31 * i + (i >> 8)) & 255 for i in range(given.get("fill", 0)))


def message_of(given: Row) -> Message:
    """Return the message that the fields of a put describe."""
    return Message(
        given["topic"],
        body_of(given),
        properties=given.get("properties", ""),
        queue_id=given.get("queueId", 0),
        flag=given.get("flag", 0),
        sys_flag=given.get("sysFlag", 0),
        born_timestamp=given["bornTimestamp"],
        born_host=given.get("bornHost", BORN_HOST),
        store_host=given.get("storeHost", STORE_HOST),
        reconsume_times=given.get("reconsumeTimes", 0),
        prepared_transaction_offset=given.get("preparedTransactionOffset", 0),
    )


def batch_of(given: Row) -> MessageBatch:
    """Return the batch that the fields of a put describe."""
    items = [
        BatchItem(
            body_of(item),
            properties=as_map(item.get("properties", "")),
            flag=item.get("flag", 0),
        )
        for item in given["items"]
    ]
    return MessageBatch(
        given["topic"],
        items,
        queue_id=given.get("queueId", 0),
        properties=as_map(given.get("properties", "")),
        sys_flag=given.get("sysFlag", 0),
        born_timestamp=given["bornTimestamp"],
        born_host=given.get("bornHost", BORN_HOST),
        store_host=given.get("storeHost", STORE_HOST),
        reconsume_times=given.get("reconsumeTimes", 0),
    )


def as_map(text: str) -> dict[str, str]:
    """Return a property string as the driver gave it to the store: as a map."""
    return parse_properties(text)


def in_order_of_names(record: bytes) -> bytes:
    """Return a record with its properties sorted: a real store writes them as its map has them.

    The order of a Java HashMap depends on its history; everything else is as it was.
    """
    found = decode_one(record)
    text = found.properties_text.encode()
    if not text:
        return record
    assert record.endswith(text)
    pairs = sorted(pair for pair in text.split(b"\x02") if pair)
    end = b"\x02" if text.endswith(b"\x02") else b""
    ordered = b"\x02".join(pairs) + end
    assert len(ordered) == len(text)
    return record[: -len(text)] + ordered
