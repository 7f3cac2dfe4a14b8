"""What was acknowledged by whoever wrote to a RocketMQ store, and what everybody must show for it.

Rows have the drivers' names. `check_real` holds the answers of the real classes against the
book, `check_store` our open store, `check_files` the files of a closed one, read by code that
shares nothing with the store but the layouts.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import tubestore
from bench.real.drivers import Row, bytes_of, of_kind
from rocketcompat.check.whole import check
from rocketcompat.formats import TOPIC_SIZE_MAX
from rocketcompat.messages import GetMessageStatus, Message, MessageRecord
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.compat.interop.rocket_messages import SETTINGS, columns_of
from tests.proof.explorer.rocket_files import read_index, read_queues
from tests.support.rocket.golden import same_host
from tests.support.rocket.inside import queues_of
from tubestore.core.java_hash import java_hash
from tubestore.core.vfs import OsVfs
from tubestore.offline.check import check as check_tube

Place = tuple[str, int]
#: What the driver's `append` gives every message and does not tell.
APPENDED = {
    "sysFlag": 0,
    "bornHost": "10.1.2.3:45678",
    "storeHost": "192.168.0.9:10911",
    "reconsumeTimes": 0,
    "preparedTransactionOffset": 0,
}
#: The fields of a row that are compared.
FIELDS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "flag", "sysFlag",
    "bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes",
    "preparedTransactionOffset", "bodyCRC", "msgId", "properties", "body",
)  # fmt: skip
#: Bits of a sysFlag: a half message has no place in a queue.
PREPARED, IPV6_BORN, IPV6_STORE = 0x4, 0x10, 0x20


class Book:
    """The messages of a store in the order of its log."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = sorted(rows, key=lambda row: row["physicalOffset"])
        self._empty_file = 0

    @property
    def end(self) -> int:
        """Physical offset at which the log ends: behind the last message, as a rule."""
        last = self.rows[-1]["physicalOffset"] + self.rows[-1]["storeSize"]
        return max(int(last), self._empty_file)

    def take_end(self, end: int) -> None:
        """Take it that a killed writer had closed a file and put nothing into the next yet."""
        size = SETTINGS["mappedFileSizeCommitLog"]
        assert end in (self.end, -(-self.end // size) * size), f"ends at {end}"
        self._empty_file = end

    @property
    def queues(self) -> dict[Place, list[Row]]:
        """The messages of each queue in order."""
        found: dict[Place, list[Row]] = defaultdict(list)
        for row in self.rows:
            if not row["sysFlag"] & PREPARED:
                found[row["topic"], row["queueId"]].append(row)
        return dict(found)

    @property
    def keys(self) -> dict[tuple[str, str], list[int]]:
        """Physical offsets by topic and key, in order."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in self.rows:
            for key in keys_of(row):
                found[row["topic"], key].append(row["physicalOffset"])
        return dict(found)

    def put(self, store: DefaultMessageStore, message: Message) -> Row:
        """Put a message through our store, and note it."""
        result = store.put_message(message)
        row = row_of_message(message) | {
            "physicalOffset": result.physical_offset,
            "queueOffset": result.queue_offset,
            "storeSize": result.size,
            "storeTimestamp": result.store_timestamp,
            "msgId": result.msg_id,
        }
        if message.born_timestamp is None:
            row["bornTimestamp"] = result.store_timestamp
        self.rows.append(row)
        return row

    def put_columns(self, store: DefaultMessageStore, messages: Sequence[Message]) -> None:
        """Put messages in one go, and note them."""
        names = ("physicalOffset", "queueOffset", "storeSize", "storeTimestamp")
        put = store.put_columns(columns_of(messages))
        places = zip(*(column.to_pylist() for column in put.columns[: len(names)]), strict=True)
        for message, place in zip(messages, places, strict=True):
            self.rows.append(row_of_message(message) | dict(zip(names, place, strict=True)))

    def note(self, store: DefaultMessageStore, physical_offsets: Iterable[int]) -> None:
        """Note what stands in the log: what was put is not what was given."""
        self.rows += [row_of_record(store.look_message(offset)) for offset in physical_offsets]

    def take(self, rows: Iterable[Row]) -> None:
        """Note what a real store appended."""
        for row in of_kind(rows, "append"):
            assert row["status"] == "PUT_OK"
            properties = {"KEYS": " ".join(row["keys"]), "TAGS": row["tag"]}
            body = bytes_of(row, "body")
            told = {name: row[name] for name in FIELDS if name in row}
            self.rows.append(told | APPENDED | {"properties": properties} | _of_body(body))

    def wanted_keys(self) -> list[tuple[str, str]]:
        """Keys worth a question: of few messages, since answers are limited; some of each kind."""
        few = [pair for pair, offsets in self.keys.items() if len(offsets) <= 20]
        return [*few[:: max(1, len(few) // 60)], *few[-8:], ("orders", "nobody's")]


def keys_of(row: Row) -> list[str]:
    """Return the keys by which a message is found."""
    properties = row["properties"]
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return unique + properties.get("KEYS", "").split()


def _of_body(body: bytes) -> Row:
    return {
        "body": f"{len(body)} {hashlib.sha256(body).hexdigest()}",
        "bodyCRC": zlib.crc32(body) & 0x7FFFFFFF,
    }


def row_of_message(message: Message) -> Row:
    """Return what must come back of a message; its place in the store is missing."""
    if isinstance(message.properties, str):
        pairs = [pair.split("\x01") for pair in message.properties.split("\x02") if pair]
        properties = dict(pairs)
    else:
        properties = dict(message.properties or {})
        properties |= {"TAGS": message.tags} if message.tags else {}
        properties |= {"KEYS": str(message.keys)} if message.keys else {}
    sys_flag = message.sys_flag
    sys_flag |= IPV6_BORN if message.born_host.startswith("[") else 0
    sys_flag |= IPV6_STORE if message.store_host.startswith("[") else 0
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "flag": message.flag,
        "sysFlag": sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": properties,
        **_of_body(message.body),
    }


def row_of_record(record: MessageRecord) -> Row:
    """Return a record that our store has read."""
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": record.born_host,
        "storeHost": record.store_host,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "msgId": record.msg_id,
        "properties": record.properties,
        **_of_body(record.body),
        "bodyCRC": record.body_crc,
    }


def row_of_answer(row: Row) -> Row:
    """Return a message that a real store has read."""
    assert "error" not in row, row
    assert row["crcOk"], row
    long = len(row["topic"].encode()) > TOPIC_SIZE_MAX
    assert row["magic"] == ("daa320ab" if long else "daa320a7"), row
    digest = row["bodySha256"] if "bodySha256" in row else _digest(bytes_of(row, "body"))
    told = {name: row[name] for name in FIELDS if name in row}
    told["body"] = f"{row['bodySize']} {digest}"
    told["properties"] = row["properties"] or {}
    for name in ("bornHost", "storeHost"):
        told[name] = same_host(row[name])
    return told


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def compare_queues(shown: dict[Place, list[Row]], book: Book) -> None:
    """Every message of every queue, field by field, and nothing else."""
    wanted = book.queues
    assert sorted(shown) == sorted(wanted)
    for place, rows in wanted.items():
        offsets = [row["queueOffset"] for row in shown[place]]
        assert offsets == list(range(len(rows))), f"{place}: queue offsets {offsets}"
        for row, seen in zip(rows, shown[place], strict=True):
            assert {name: seen[name] for name in row} == row


def check_real(rows: Sequence[Row], book: Book, *, clean: bool = True) -> None:
    """Hold the rows of `dump` or `visit` against the book.

    What the call itself appended is not in it yet. When the real store had to recover, it has
    indexed the last message once more, and answers it twice.
    """
    (load,) = of_kind(rows, "load")
    assert load["result"], "the real store refused to load"
    (store,) = of_kind(rows, "store")
    assert store["dispatched"]
    assert not of_kind(rows, "gap")
    assert not of_kind(rows, "stuck")
    assert (store["minPhyOffset"], store["maxPhyOffset"]) == (0, book.end)
    if clean:
        assert load["maxPhyOffset"] == book.end, "its recovery did not find the log's end"
    shown: dict[Place, list[Row]] = {}
    ends = {}
    for row in rows:
        if row["kind"] == "appended":
            break
        if row["kind"] == "queue":
            ends[row["topic"], row["queueId"]] = (row["minOffset"], row["maxOffset"])
            shown[row["topic"], row["queueId"]] = []
        elif row["kind"] == "message":
            assert row["index"] == row["queueOffset"], row
            shown[row["topic"], row["queueId"]].append(row_of_answer(row))
    compare_queues(shown, book)
    assert ends == {place: (0, len(found)) for place, found in book.queues.items()}
    keys = book.keys
    for row in of_kind(rows, "query"):
        wanted = keys.get((row["topic"], row["key"]), [])
        found = row["physicalOffsets"] if clean else sorted(set(row["physicalOffsets"]))
        assert found == wanted, f"{row['topic']} {row['key']}"


def check_store(store: DefaultMessageStore, book: Book) -> None:
    """Hold our open store against the book: queues, ranges, keys."""
    assert store.wait_dispatched(book.end - 1, 30)
    assert store.problems == []
    assert (store.min_physical_offset, store.max_physical_offset) == (0, book.end)
    compare_queues(read_all(store), book)
    keys = book.keys
    for topic, key in book.wanted_keys():
        answer = store.query_message(topic, key)
        assert answer.physical_offsets == keys.get((topic, key), []), f"{topic} {key}"


def read_all(store: DefaultMessageStore) -> dict[Place, list[Row]]:
    """Pull every queue of our store from its first message to its last."""
    found: dict[Place, list[Row]] = {}
    for queue in queues_of(store):
        rows = found.setdefault((queue.topic, queue.queue_id), [])
        offset = store.min_offset_in_queue(queue.topic, queue.queue_id)
        while True:
            page = store.get_message(queue.topic, queue.queue_id, offset, 32)
            if page.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
                break
            assert page.status is GetMessageStatus.FOUND, page
            assert page.problems == []
            rows += [row_of_record(message) for message in page.messages]
            offset = page.next_begin_offset
        assert offset == store.max_offset_in_queue(queue.topic, queue.queue_id)
    return found


def check_files(
    root: Path, book: Book, settings: dict[str, int] | None = None, *, shards: bool = True
) -> None:
    """Hold the files of a store that we closed against the book: everything there, once."""
    used = settings or SETTINGS
    vfs = OsVfs()
    units = {place: found for place, found in read_queues(vfs, str(root)).items() if found}
    wanted = {
        place: {n: (row["physicalOffset"], row["storeSize"]) for n, row in enumerate(rows)}
        for place, rows in book.queues.items()
    }
    assert units == wanted
    items = Counter(
        (_key_hash(row["topic"], key), row["physicalOffset"])
        for row in book.rows
        for key in keys_of(row)
    )
    slots, most = used["maxHashSlotNum"], used["maxIndexNum"]
    have = read_index(vfs, str(root), slots, most, closed=True)
    assert have == items, f"index: missing {items - have}, too much {have - items}"
    assert list(check(root, used)) == []
    if shards:
        check_shards(root, book)
    assert not (root / "abort").exists()


def _key_hash(topic: str, key: str) -> int:
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value > 0x7FFFFFFF else value


def check_shards(root: Path, book: Book) -> None:
    """Every message of a queue stands once in its shard, in the order of the log."""
    found: dict[Place, list[tuple[int, int, str]]] = defaultdict(list)
    with tubestore.open(root / "tube", mode="r") as store:
        for topic in store.topics():
            names = ["partition", "msg_id", "body"]
            for row in store.topic(topic).scan(columns=names, verify=True).read_all().to_pylist():
                shard = (topic, row["partition"] // 10_000)
                body = _of_body(row["body"])["body"]
                found[shard].append((row["partition"], row["msg_id"], body))
        assert store.problems == []
    wanted: dict[Place, list[tuple[int, int, str]]] = defaultdict(list)
    for row in book.rows:
        if not row["sysFlag"] & PREPARED:
            shard = (row["topic"], row["queueId"] // 10_000)
            wanted[shard].append((row["queueId"], row["physicalOffset"], row["body"]))
    assert {shard: rows for shard, rows in found.items() if rows} == wanted
    assert list(check_tube(root / "tube")) == []


def rows_of(shown: dict[Place, list[Row]]) -> list[Row]:
    """Return the rows of all queues together."""
    return [row for rows in shown.values() for row in rows]
