"""Statements of the seeds about TubeMQ's store that no other file tests.

`mutation/rows.txt` names the test of each statement. The weaknesses of the original
(`tubestore/docs/differences.md`) name their tests too: all of them are there.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support import REPOSITORY
from tests.support.tube import bodies, make_rows, open_shard
from tubestore.clock import ManualClock
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"


def test_every_weakness_of_tubemq_has_its_tests_or_its_reason() -> None:
    page = (REPOSITORY / "tubestore" / "docs" / "differences.md").read_text()
    rows: dict[int, list[list[str]]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"\d+(, \d+)*", cells[0]):
            for number in cells[0].split(", "):
                rows.setdefault(int(number), []).append(cells)
    assert sorted(rows) == list(range(1, 30))
    for number, found in rows.items():
        for cells in found:
            assert len(cells) == 4, number
            named = re.findall(r"`((?:[a-z_]+/)+test_[a-z_]+|tests/[a-z_/]+)`", cells[3])
            assert named or cells[3].startswith("by intent"), f"{number}: {cells[3]}"
            for name in named:
                path = REPOSITORY / (name if name.startswith("tests/") else f"tests/{name}.py")
                assert path.exists(), f"{number}: there is no {name}"


def size_of(vfs: Any, path: str) -> int:
    return len(vfs.read_file(path)) if vfs.exists(path) else 0


def test_each_store_of_a_topic_has_a_directory_and_its_10_000_numbers(tmp_path: Path) -> None:
    """TUB-05, TUB-19: 10,000 is the base of the numbering; how many stores there are is said."""
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", partitions=2, stores=2)
        assert topic.partition_ids == [0, 1, 10_000, 10_001]
        for partition in topic.partition_ids:
            topic.append(b"%d" % partition, partition=partition)
        with pytest.raises(tubestore.InvalidMessage):
            topic.append(b"x", partition=2)
    for shard in ("t-0", "t-1"):
        names = {str(p.relative_to(tmp_path / shard)) for p in (tmp_path / shard).rglob("0*")}
        assert names == {f"{0:020d}.tube", f"index/{0:020d}.index"}
    assert TopicOptions().stores == 1


def test_few_messages_wait_in_memory_and_many_are_written_at_once(memory_vfs: MemoryVfs) -> None:
    """TUB-06, TUB-18: nothing of a buffer is in the files, then all of it, in both."""
    shard = open_shard(memory_vfs, mem_store_messages=10)
    rows = make_rows(11)
    for row in rows[:10]:
        shard.append(row, "memory")
    assert size_of(memory_vfs, DATA) == size_of(memory_vfs, INDEX) == 0
    assert shard.view().index_end == 10 * ENTRY_SIZE
    shard.append(rows[10], "memory")
    written = sum(HEADER_SIZE + len(row.payload) for row in rows[:10])
    assert (size_of(memory_vfs, DATA), size_of(memory_vfs, INDEX)) == (written, 10 * ENTRY_SIZE)
    shard.close()


class HeldVfs(FaultyVfs):
    """A disk that takes no data until it may."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.asked, self.may_go = threading.Event(), threading.Event()

    def ask_write(self, path: str, size: int) -> tuple[int, OSError | None]:
        if path.endswith(".tube"):
            self.asked.set()
            assert self.may_go.wait(30)
        return super().ask_write(path, size)


def test_a_shard_has_two_buffers_and_its_files(memory_vfs: MemoryVfs) -> None:
    """TUB-07: one takes messages while the other is written, and both are read."""
    vfs = HeldVfs(memory_vfs)
    shard = open_shard(vfs, mem_store_messages=2)
    rows = make_rows(3)
    for row in rows[:2]:
        shard.append(row, "memory")
    flusher = threading.Thread(target=shard.flush)
    flusher.start()
    assert vfs.asked.wait(30)
    shard.append(rows[2], "memory")
    flushing, main = shard._buffer.flushing, shard._buffer.main
    assert flushing is not None
    assert (flushing.count, main.count) == (2, 1)
    assert bodies(shard.view()) == [row.payload for row in rows]
    vfs.may_go.set()
    flusher.join()
    assert not shard._buffer.is_flushing
    assert size_of(memory_vfs, INDEX) == 2 * ENTRY_SIZE
    shard.close()


def test_the_limits_are_tubemq_s_by_default() -> None:
    """TUB-08 … TUB-10, TUB-23 … TUB-28: 1.5 MiB, 5,120; 1 GiB, 700,000; 1,000, none, 10 s."""
    options = StoreOptions()
    assert (options.mem_store_size_bytes, options.mem_store_messages) == (3 << 19, 5120)
    assert options.segment_size_bytes == 1 << 30
    assert options.index_segment_size_bytes == 700_000 * INDEX_ENTRY.size == 19_600_000
    assert (options.sync_after_messages, options.sync_after_bytes) == (1000, 0)
    assert (options.sync_after_ms, options.mem_flush_interval_ms) == (10_000, 20_000)


def test_appends_go_on_while_the_other_buffer_is_written(memory_vfs: MemoryVfs) -> None:
    """TUB-11: a slow disk holds up the buffer that is written and not who appends."""
    vfs = HeldVfs(memory_vfs)
    shard = open_shard(vfs, mem_store_messages=4, append_timeout_ms=0)
    rows = make_rows(6)
    for row in rows[:3]:
        shard.append(row, "memory")
    flusher = threading.Thread(target=shard.flush)
    flusher.start()
    assert vfs.asked.wait(30)
    offsets = [shard.append(row, "memory") for row in rows[3:]]
    vfs.may_go.set()
    flusher.join()
    assert offsets == [ENTRY_SIZE * n for n in (3, 4, 5)]
    shard.close()


def test_places_that_an_append_gives_are_those_in_the_files(memory_vfs: MemoryVfs) -> None:
    """TUB-13, TUB-14: fixed when a message is taken, whatever is written before it."""
    shard = open_shard(memory_vfs, mem_store_messages=3, segment_size_bytes=400)
    rows = make_rows(20)
    offsets = [shard.append(row, "memory") for row in rows]
    shard.close()
    index = _stream(memory_vfs, f"{HOME}/index", ".index")
    data = _stream(memory_vfs, HOME, ".tube")
    for row, offset in zip(rows, offsets, strict=True):
        entry = INDEX_ENTRY.unpack_from(index, offset)
        header = DATA_HEADER.unpack_from(data, entry.data_offset)
        assert header.queue_logic_offset == offset
        start = entry.data_offset + HEADER_SIZE
        assert data[start : entry.data_offset + entry.data_size] == row.payload


def _stream(vfs: MemoryVfs, directory: str, suffix: str) -> bytes:
    names = [name for name, _, _ in vfs.entries(directory) if name.endswith(suffix)]
    assert names
    return b"".join(vfs.read_file(f"{directory}/{name}") for name in names)


def test_files_are_only_ever_written_at_their_end(memory_vfs: MemoryVfs) -> None:
    """TUB-22: through the file, not through a map, one piece behind the other."""
    journal = memory_vfs.record()
    shard = open_shard(memory_vfs, mem_store_messages=3, segment_size_bytes=400)
    for row in make_rows(20):
        shard.append(row, "memory")
    shard.close()
    ends: dict[int, int] = {}
    for call in journal.calls:
        if call.kind == "pwrite" and call.path.endswith((".tube", ".index")):
            assert call.position == ends.get(call.file, 0)
            ends[call.file] = call.position + len(call.data)
    assert len(ends) > 2


def test_what_is_in_memory_is_read_without_touching_the_disk(memory_vfs: MemoryVfs) -> None:
    """TUB-30."""
    faulty = FaultyVfs(memory_vfs)
    clock = ManualClock()
    with tubestore.open("/s", vfs=faulty, clock=clock, background=False) as store:
        topic = store.create_topic("t", partitions=2)
        acks = [topic.append(b"%d" % n, partition=n % 2, durability="memory") for n in range(6)]
        before = dict(faulty.calls)
        page = topic.read(1, acks[1].offset)
        assert [m.body for m in page] == [b"1", b"3", b"5"]
        assert dict(faulty.calls) == before


def test_an_offset_is_found_in_every_file_and_in_memory(memory_vfs: MemoryVfs) -> None:
    """TUB-29, TUB-31, TUB-32: in the first, a middle and the last index file; data rolls apart."""
    clock = ManualClock()
    sizes = {"segment_size_bytes": 500, "index_segment_size_bytes": 7 * ENTRY_SIZE}
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False, **sizes) as store:
        topic = store.create_topic("t", partitions=3)
        acks = []
        for n in range(40):
            acks.append(topic.append(b"message %02d" % n, partition=n % 3))
            topic.flush()
        acks += [topic.append(b"memory %02d" % n, partition=n % 3, durability="memory")
                 for n in range(40, 46)]  # fmt: skip
        for ack in acks:
            found = topic.message_at(ack.partition, ack.offset)
            assert found is not None
            assert int(found.body[-2:]) == ack.offset // ENTRY_SIZE
            assert topic.message_at((ack.partition + 1) % 3, ack.offset) is None
    starts = [{int(name[:20]) for name, _, _ in memory_vfs.entries(directory) if name[0] == "0"}
              for directory in ("/s/t-0", "/s/t-0/index")]  # fmt: skip
    assert min(map(len, starts)) > 3
