"""The seeds' statements about the log, its records and the checkpoint, one test a row.

Rows CL-…, MSG-…, WR-…, CKP-… of the inventory, with their numbers; the rows about flushing are in
`test_rocket_flush.py`, those about the transient pool in `test_rocket_transient_pool.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import MESSAGE_HEAD, offset_name, record_size
from rocketcompat.record.codec import encode_one
from rocketcompat.record.prepare import prepare
from rocketcompat.record.verify import sound_chain
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of
from tubestore.core.kernels import crc32
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

SIZE = 4096
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
)
DEFAULT = MessageStoreConfig()
GIB = 1024 * 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        yield store


def log_files(store: DefaultMessageStore) -> list[Path]:
    return sorted((Path(store.root) / "commitlog").iterdir())


def raw(message: Message, config: MessageStoreConfig = DEFAULT) -> bytes:
    return encode_one(prepare(message, config), 5, 0, 1_700_000_000_000)


def test_all_topics_share_one_log_in_the_order_of_the_puts(store: DefaultMessageStore) -> None:
    """CL-01, CL-11, CL-12: one log, identified by physical offset, which is not contiguous."""
    puts = [store.put_message(Message(f"T{n % 3}", b"x" * (10**n))) for n in range(3)]
    offsets = [put.physical_offset for put in puts]
    assert offsets == sorted(offsets)
    assert [b - a for a, b in itertools.pairwise(offsets)] == [94, 103]
    for put in puts:
        assert store.look_message(put.physical_offset).physical_offset == put.physical_offset
    assert len(log_files(store)) == 1


def test_what_was_written_is_never_changed(store: DefaultMessageStore) -> None:
    """CL-02."""
    for _ in range(20):
        store.put_message(Message("T", b"x" * 100))
    end = store.max_physical_offset
    before = hashlib.sha256(log_files(store)[0].read_bytes()[:end]).digest()
    for _ in range(200):
        store.put_message(Message("T", b"y" * 100))
    assert hashlib.sha256(log_files(store)[0].read_bytes()[:end]).digest() == before


def test_many_producers_leave_no_gap_and_no_repeat(store: DefaultMessageStore) -> None:
    """CL-03."""
    found: list[int] = []

    def produce() -> None:
        found.extend(store.put_message(Message("T", b"x" * 50)).queue_offset for _ in range(100))

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(800))
    assert store.wait_dispatched(store.max_physical_offset - 1)
    assert store.max_offset_in_queue("T", 0) == 800


def test_a_file_has_one_gibibyte_by_default_and_its_full_size_from_the_start(
    tmp_path: Path,
) -> None:
    """CL-04, WR-01: the file exists at full size before the first message is in it."""
    config = MessageStoreConfig(layouts=frozenset())
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        store.put_message(Message("T"))
        (path,) = log_files(store)
        assert path.stat().st_size == GIB == 1_073_741_824
        assert path.stat().st_blocks * 512 < 1 << 20


def test_names_are_the_offset_of_the_first_byte_in_twenty_digits(
    store: DefaultMessageStore,
) -> None:
    """CL-05 … CL-08."""
    for _ in range(30):
        store.put_message(Message("T", b"x" * 500))
    names = [path.name for path in log_files(store)]
    assert len(names) > 3
    assert all(re.fullmatch("[0-9]{20}", name) for name in names)
    assert [int(name) for name in names] == [SIZE * n for n in range(len(names))]
    assert {path.stat().st_size for path in log_files(store)} == {SIZE}
    assert [offset_name(n * GIB) for n in range(3)] == [
        "00000000000000000000", "00000000001073741824", "00000000002147483648",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [0, 7])
def test_the_file_of_an_offset_is_found_by_division(memory_vfs: MemoryVfs, first: int) -> None:
    """CL-09, CL-10: (1073741827 - 0) / 1073741824 = 1, the second file; also after cleaning."""
    queue = MappedFileQueue(memory_vfs, "/log", GIB)
    for number in range(first, first + 3):
        queue.create(number * GIB)
    found = queue.find(first * GIB + 1_073_741_827)
    assert found is not None
    assert found is queue.files[1]
    assert queue.find(first * GIB - 1) is None
    assert queue.find((first + 3) * GIB) is None


def test_neighbours_lie_as_far_apart_as_the_first_is_long_but_for_the_filler(
    store: DefaultMessageStore,
) -> None:
    """CL-13, CL-14, CL-15: no record crosses a file's end; a blank fills the rest."""
    puts = [store.put_message(Message("T", b"x" * 700)) for _ in range(12)]
    for one, other in itertools.pairwise(puts):
        step = other.physical_offset - one.physical_offset
        same_file = one.physical_offset // SIZE == other.physical_offset // SIZE
        end = one.physical_offset + one.size
        assert step == (one.size if same_file else one.size + SIZE - end % SIZE)
    for path in log_files(store)[:-1]:
        data = path.read_bytes()
        found = sound_chain(data, 0, int(path.name), SIZE)
        assert found.blank
        assert struct.unpack_from(">iI", data, found.end) == (SIZE - found.end, 0xCBD43194)
        assert not any(data[found.end + 8 :])


def test_the_fixed_part_of_a_record_takes_91_bytes() -> None:
    """MSG-01 … MSG-03: body 11, topic 10 and properties of 82 bytes make 194."""
    assert record_size(0, -626843481, 11, 10, 82) == 194
    text = "KEYS\x01" + "k" * 77
    record = raw(Message("TopicTests", b"hello world", properties=text))
    assert len(record) == 194
    assert record[:4] == bytes.fromhex("000000c2")
    assert record[4:8] == bytes.fromhex("daa320a7")  # MSG-04, MSG-05


def test_the_checksum_is_the_bodys() -> None:
    """MSG-06."""
    assert crc32(b"messageBody") == 532_952_986
    assert struct.unpack_from(">i", raw(Message("T", b"messageBody")), 8) == (532_952_986,)


def test_every_field_is_at_its_place() -> None:
    """MSG-07 … MSG-09, MSG-11, MSG-12, MSG-17 … MSG-21, MSG-23."""
    record = raw(
        Message("T", b"x", queue_id=3, flag=7, sys_flag=8, born_timestamp=111,
                born_host="1.2.3.4:5678", store_host="10.0.0.7:10911", reconsume_times=3,
                prepared_transaction_offset=99)
    )  # fmt: skip
    assert struct.unpack_from(">iiqqi", record, 12) == (3, 7, 5, 0, 8)
    assert struct.unpack_from(">q", record, 40) == (111,)
    assert record[48:56] == bytes.fromhex("010203040000162e")
    assert struct.unpack_from(">q", record, 56) == (1_700_000_000_000,)
    assert record[64:72] == bytes.fromhex("0a00000700002a9f")
    assert struct.unpack_from(">iq", record, 72) == (3, 99)  # 4 bytes, and what follows is whole
    assert MESSAGE_HEAD.size == 88


def test_a_unit_at_twenty_times_the_queue_offset_points_to_the_record(
    store: DefaultMessageStore,
) -> None:
    """MSG-09, MSG-10, MSG-16, CQ-05, CQ-06: those prepared and rolled back take no number."""
    flags = [0, 4, 8, 12, 0]
    puts = [
        store.put_message(Message("T", b"x" * number, sys_flag=flag))
        for number, flag in enumerate(flags)
    ]
    assert [put.queue_offset for put in puts] == [0, 0, 1, 0, 2]
    dispatcher_of(store).dispatch_pending()
    path = Path(store.root) / "consumequeue" / "T" / "0" / offset_name(0)
    units = path.read_bytes()
    found = [struct.unpack_from(">qi", units, 20 * n) for n in range(3)]
    assert found == [(put.physical_offset, put.size) for put, flag in zip(puts, flags, strict=True)
                     if flag in (0, 8)]  # fmt: skip


def test_store_times_never_go_back_along_the_log(store: DefaultMessageStore) -> None:
    """MSG-19."""
    times = [store.put_message(Message("T")).store_timestamp for _ in range(50)]
    assert times == sorted(times)


@pytest.mark.parametrize("size", [0, 1, 4096, 4 << 20])
def test_bodies_of_all_sizes_come_back(tmp_path: Path, size: int) -> None:
    """MSG-24."""
    with rocketcompat.open(
        tmp_path, "w", MessageStoreConfig(layouts=frozenset()), background=False
    ) as store:
        put = store.put_message(Message("T", b"x" * size))
        assert store.look_message(put.physical_offset).body == b"x" * size


def test_property_texts_have_two_invisible_separators() -> None:
    """MSG-25 … MSG-28: limits of topic and properties; what separates cannot be in a value."""
    record = raw(Message("T", keys="k1", tags="A"))
    assert record.endswith(bytes.fromhex("4b455953016b310254414753" + "0141"))
    assert len(raw(Message("t" * 127, properties="x\x01" + "y" * 32765))) == 91 + 127 + 32767
    for message in (Message("T", tags="a\x02b"), Message("T", properties={"a\x02": "b"})):
        with pytest.raises(InvalidMessage):
            raw(message)


def test_a_separator_in_a_value_is_kept_or_refused_and_the_log_can_be_walked(
    store: DefaultMessageStore,
) -> None:
    """MSG-28: U+0001 ends a name and not a value; a given property string is stored as it is."""
    given = [
        ({"properties": {"a": "b\x01c"}}, {"a": "b\x01c"}),
        ({"properties": "a\x01b\x01c\x02\x02x\x02d\x01e"}, {"a": "b\x01c", "d": "e"}),
    ]
    puts = [store.put_message(Message("T", **fields)) for fields, _ in given]
    last = store.put_message(Message("T", b"behind"))
    for put, (_, properties) in zip(puts, given, strict=True):
        found = store.look_message(put.physical_offset).properties
        assert {name: found[name] for name in properties} == properties
    for refused in ({"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}):
        with pytest.raises(InvalidMessage):
            store.put_message(Message("T", properties=refused))
    assert [batch.num_rows for batch in store.scan()] == [3]
    assert store.look_message(last.physical_offset).body == b"behind"


def test_a_refused_message_leaves_no_gap(store: DefaultMessageStore) -> None:
    """apache/rocketmq #6570: an illegal message used up a queue offset."""
    assert store.put_message(Message("T")).queue_offset == 0
    with pytest.raises(InvalidMessage):
        store.put_message(Message("T", flag=1 << 40))
    assert store.put_message(Message("T")).queue_offset == 1


def test_stale_records_of_a_file_that_is_used_again_are_no_records() -> None:
    """apache/rocketmq #10017: magic and checksum are right, the place is not."""
    record = raw(Message("T", b"old"))
    assert sound_chain(record, 0, 0, 4096).reason is None
    assert sound_chain(record, 0, 8192, 4096).reason == "its own physical offset is 0"


def test_the_checkpoint_has_4096_bytes_and_has_what_was_flushed(tmp_path: Path) -> None:
    """CKP-01 … CKP-03, CKP-05."""
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        put = store.put_message(Message("T"))
        path = tmp_path / "checkpoint"
        assert not path.exists() or not any(path.read_bytes())
        store.flush()
        data = path.read_bytes()
        assert len(data) == 4096
        assert struct.unpack_from(">qq", data) == (put.store_timestamp, put.store_timestamp)
        assert not any(data[24:])
