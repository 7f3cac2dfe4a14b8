"""getMessage and queryMessage against the real answers, and their limits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat.commitlog.walk import NO_GAPS
from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry, key_hash
from rocketcompat.messages import GetMessageStatus, Message, MessageRecord
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.reading.keys import look_message_by_offset, query_message
from rocketcompat.reading.parts import Found
from rocketcompat.reading.pull import get_message, tag_codes
from rocketcompat.record.codec import encode_one
from rocketcompat.record.prepare import prepare
from rocketcompat.record.properties import keys_of
from tests.support.golden import Golden, GoldenFactory, golden_fixture  # noqa: F401
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import CorruptRecord
from tubestore.testing.memory_vfs import MemoryVfs

VERSIONS = ["4.9.8", "5.3.3"]
SCENARIOS = ["basic", "rolled", "keys-tags", "crash", "torn-half", "pull-limits"]


class FilesLog:
    """A log part over files that lie still."""

    def __init__(self, directory: Path, end: int) -> None:
        self._files = {int(path.name): path.read_bytes() for path in sorted(directory.iterdir())}
        self._size = len(next(iter(self._files.values())))
        self.min_offset, self.max_offset = min(self._files), end
        self.gaps, self.record_crc = NO_GAPS, False

    def read_at(self, physical_offset: int, size: int) -> bytes:
        start = physical_offset - physical_offset % self._size
        at = physical_offset - start
        return self._files.get(start, b"")[at : at + size]


class MemoryLog:
    """A log part of bytes."""

    min_offset = 0
    gaps, record_crc = NO_GAPS, False

    def __init__(self) -> None:
        self.data = b""

    @property
    def max_offset(self) -> int:
        return len(self.data)

    def read_at(self, physical_offset: int, size: int) -> bytes:
        return self.data[physical_offset : physical_offset + size]


def parts_of(real: Golden) -> Any:
    config = MessageStoreConfig.from_camel(real.meta["config"])
    (state,) = real.expected(type="store")
    vfs = OsVfs()
    queues = ConsumeQueueTable(
        vfs, str(real.store / "consumequeue"), config.consume_queue_file_size, writable=False
    )
    queues.load()
    queues.correct_min_offset(state["minPhyOffset"])
    geometry = IndexGeometry(config.max_hash_slot_num, config.max_index_num)
    index = IndexService(vfs, str(real.store / "index"), geometry, ManualClock(), writable=False)
    index.load()
    log = FilesLog(real.store / "commitlog", state["maxPhyOffset"])
    return SimpleNamespace(commit_log=log, queues=queues, index=index, config=config)


def as_upstream(result: Found, column: list[int]) -> list[int | None]:
    """What the oracle prints: null where the real decoder fails."""
    pairs = zip(result.entries, column, strict=True)
    return [value if isinstance(entry, MessageRecord) else None for entry, value in pairs]


def small_store(*messages: Message, **options: Any) -> Any:
    """A store of one queue in memory."""
    config = MessageStoreConfig(**options)
    log, vfs = MemoryLog(), MemoryVfs()
    queues = ConsumeQueueTable(vfs, "/cq", config.consume_queue_file_size)
    index = IndexService(vfs, "/index", IndexGeometry(16, 400), ManualClock())
    queue = queues.find_or_create("T", 0)
    for number, message in enumerate(messages):
        prepared = prepare(message, config)
        offset, time = len(log.data), 1_000_000 + 400 * number
        log.data += encode_one(prepared, number, offset, time)
        tag = next(iter(tag_codes(message.tags) or {0}))
        queue.put_units(np.array([number]), [offset], [prepared.size], [tag])
        record = look_message_by_offset(SimpleNamespace(commit_log=log), offset)  # type: ignore[arg-type]
        assert record is not None
        keys = keys_of(record.properties)
        batch = SimpleNamespace(
            start=offset,
            end=len(log.data),
            physical_offsets=np.array([offset]),
            store_timestamps=np.array([time]),
            key_rows=np.zeros(len(keys), np.int64),
            key_hashes=np.array([key_hash("T", key) for key in keys], np.int32),
        )
        index.put(batch)  # type: ignore[arg-type]
    return SimpleNamespace(commit_log=log, queues=queues, index=index, config=config)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pulls_answer_as_the_real_store_does(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    """Units as they lie; what recovery changes is the command line's and the store's test."""
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    compared = 0
    for row in real.queries(type="get"):
        result = get_message(
            parts, row["topic"], row["queueId"], row["offset"], row["max"], row["sub"]
        )
        got = {
            "status": result.status.value,
            "nextBeginOffset": result.next_begin_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
            "queueOffsets": as_upstream(result, result.queue_offsets),
            "physicalOffsets": as_upstream(result, result.physical_offsets),
        }
        want = {name: row[name] for name in got}
        if scenario == "torn-half" and row["maxOffset"] != got["maxOffset"]:
            continue  # the torn record's unit: recovery, not the pull, takes it away
        assert got == want, row
        compared += 1
    assert compared >= 20


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "crash"])
def test_queries_by_hash_answer_as_the_real_store_does(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    for row in real.queries(type="query"):
        arguments = (row["topic"], row["key"], row["max"], row["begin"], row["end"])
        result = query_message(parts, *arguments, by_hash=True)
        assert result.physical_offsets == [m["physicalOffset"] for m in row["messages"]]
        assert result.index_last_update_timestamp == row["indexLastUpdateTimestamp"]
        assert result.index_last_update_physical_offset == row["indexLastUpdatePhyoffset"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "crash"])
def test_queries_find_each_message_with_the_key_once(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    """The real store answers by hash (Aa = BB), once for each of a message's keys that match."""
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    log = {row["physicalOffset"]: row for row in real.expected(type="message")}
    for row in real.queries(type="query"):
        arguments = (row["topic"], row["key"], row["max"], row["begin"], row["end"])
        result = query_message(parts, *arguments)
        having = []
        for offset, message in sorted(log.items()):
            properties = message["properties"]
            keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
            in_time = row["begin"] <= message["storeTimestamp"] <= row["end"]
            if message["topic"] == row["topic"] and row["key"] in keys and in_time and row["key"]:
                having.append(offset)
        assert result.physical_offsets == having[-min(row["max"], 64) :]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_looked_up_by_physical_offset(golden: GoldenFactory, version: str) -> None:
    real = golden("rocketmq", version, "basic")
    parts = parts_of(real)
    for row in real.queries(type="lookup"):
        record = look_message_by_offset(parts, row["phy"])
        assert (record is not None) == row["found"]
        if record is not None:
            assert (record.queue_offset, record.size) == (row["queueOffset"], row["storeSize"])


def test_an_unknown_queue_has_no_messages() -> None:
    result = get_message(small_store(), "nope", 3, 5)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert len(result) == 0


def test_queues_that_are_switched_off_have_their_own_status() -> None:
    parts = small_store()
    parts.queues = None
    assert get_message(parts, "T", 0, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE


def test_old_messages_get_the_smaller_limits() -> None:
    parts = small_store(*(Message("T", b"x" * 10) for _ in range(40)))
    assert len(get_message(parts, "T", 0, 0, 40)) == 32
    assert len(get_message(parts, "T", 0, 0, 40, memory_bytes=0)) == 8
    large = small_store(*(Message("T", b"x" * 30_000) for _ in range(20)))
    assert len(get_message(large, "T", 0, 0, 40)) == 8
    assert len(get_message(large, "T", 0, 0, 40, memory_bytes=0)) == 2


def test_the_first_message_is_returned_however_large() -> None:
    parts = small_store(Message("T", b"x" * 400_000), Message("T", b"y"))
    result = get_message(parts, "T", 0, 0)
    assert [record.body[:1] for record in result] == [b"x"]
    assert result.next_begin_offset == 1


def test_a_record_that_the_log_has_no_more_is_skipped_alone() -> None:
    """The real one skips everything up to the next log file."""
    parts = small_store(*(Message("T", b"%d" % n) for n in range(4)))
    parts.commit_log.min_offset = parts.queues.find("T", 0).unit(2).physical_offset
    result = get_message(parts, "T", 0, 0, 1)
    assert (result.queue_offsets, result.next_begin_offset) == ([2], 3)
    parts.commit_log.min_offset = parts.commit_log.max_offset
    result = get_message(parts, "T", 0, 3)
    assert result.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    assert (len(result), result.next_begin_offset) == (0, 4)


def test_a_unit_that_points_behind_the_log_or_to_another_number_is_a_problem() -> None:
    parts = small_store(*(Message("T", b"%d" % n) for n in range(3)))
    queue = parts.queues.find("T", 0)
    unit = queue.unit(2)
    queue.put_units(np.arange(3, 5), [1 << 40, unit.physical_offset], [100, unit.size], [0, 0])
    result = get_message(parts, "T", 0, 2)
    assert [m.queue_offset for m in result.messages] == [2]
    assert [problem.reason for problem in result.problems] == [
        f"a unit of 100 bytes at {1 << 40}, where the log has none",
        "unit 4 of T/0 points to this record, which is number 2",
    ]
    assert (result.queue_offsets, result.next_begin_offset) == ([2, 3, 4], 5)


def test_a_damaged_record_is_in_the_answer_with_its_state() -> None:
    parts = small_store(*(Message("T", b"%d" % n) for n in range(3)))
    unit = parts.queues.find("T", 0).unit(1)
    body = unit.physical_offset + 88
    data = bytearray(parts.commit_log.data)
    data[body] ^= 1
    parts.commit_log.data = bytes(data)
    result = get_message(parts, "T", 0, 0)
    assert result.queue_offsets == [0, 1, 2]
    assert [record.body for record in result.messages] == [b"0", b"2"]
    assert isinstance(result.problems[0], CorruptRecord)
    assert pa.table(result)["state"].to_pylist() == ["ok", "damaged", "ok"]


def test_tags_are_compared_by_hash_as_in_the_real_store() -> None:
    parts = small_store(*(Message("T", b"", tags=tag) for tag in ("Aa", "b", "BB", None)))
    assert get_message(parts, "T", 0, 0, tags="Aa || c").queue_offsets == [0, 2]
    none = get_message(parts, "T", 0, 0, tags="zz")
    assert (none.status, none.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 4)


def test_a_window_between_two_seconds_finds_its_message() -> None:
    """The real one keeps whole seconds and misses it: 1,001,200 counts as 1,001,000."""
    parts = small_store(*(Message("T", b"", keys=["k"]) for _ in range(6)))
    third = 1_001_200
    assert len(query_message(parts, "T", "k", 32, third, third, by_hash=True)) == 0
    (record,) = query_message(parts, "T", "k", 32, third, third)
    assert record.store_timestamp == third


def test_answers_are_arrow_and_can_be_read_again() -> None:
    parts = small_store(Message("T", b"body", tags="t", keys=["a", "b"]))
    result = get_message(parts, "T", 0, 0)
    for _ in range(2):
        (row,) = pa.table(result).to_pylist()
        assert (row["body"], dict(row["properties"])) == (b"body", {"KEYS": "a b", "TAGS": "t"})
    assert pa.table(get_message(parts, "T", 0, 1)).num_rows == 0
