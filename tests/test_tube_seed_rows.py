"""The seeds' statements about TubeMQ's store, TUB-01 … TUB-33: the tests that hold each one.

Where the store differs on purpose the row says how. What no other file tests is tested here. The
weaknesses of the original (`tubestore/DESIGN.md` 4) name their tests too: all of them are there.
"""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tubestore
from tests.support.tube import bodies, make_row, make_rows, open_shard
from tubestore.clock import ManualClock
from tubestore.formats import DATA_HEADER, INDEX_ENTRY
from tubestore.mem_store import MsgMemStore
from tubestore.options import StoreOptions, TopicOptions
from tubestore.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs

TESTS = Path(__file__).resolve().parent
HERE = "test_tube_seed_rows"
HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"


class Held(NamedTuple):
    """The tests that hold a row, `file::test`, and how we differ from it, if we do."""

    tests: tuple[str, ...]
    difference: str = ""


def held(*tests: str, but: str = "") -> Held:
    return Held(tests, but)


ROWS: dict[str, Held] = {
    "TUB-01": held("test_topic::test_round_robin_goes_through_all_partitions",
                   "test_topic_registry::test_partitions_and_shards_only_rise"),
    "TUB-02": held("test_bench::test_layout_gives_back_what_it_took",
                   but="a benchmark: `make bench` has the file-per-partition layout beside ours"),
    "TUB-03": held("test_topic::test_all_partitions_of_a_shard_share_one_data_file_and_one_"
                   "index_file"),
    "TUB-04": held("test_bench::test_workload_gives_a_sane_row_for_everybody",
                   "test_vfs_pool::test_writing_to_many_shards_needs_few_descriptors",
                   but="many topics share a journal, a pool of memory and one of descriptors"),
    "TUB-05": held(f"{HERE}::test_each_store_of_a_topic_has_a_directory_and_its_10_000_numbers"),
    "TUB-06": held(f"{HERE}::test_few_messages_wait_in_memory_and_many_are_written_at_once"),
    "TUB-07": held(f"{HERE}::test_a_shard_has_two_buffers_and_its_files"),
    "TUB-08": held("test_message_store::test_the_buffers_change_places_at_the_size",
                   "test_message_store::test_a_message_larger_than_a_buffer_gets_one_of_its_own"),
    "TUB-09": held("test_message_store::test_the_buffers_change_places_at_the_message_count"),
    "TUB-10": held(f"{HERE}::test_the_limits_are_tubemq_s_by_default",
                   but="no limit of its own: in TubeMQ it is the count times 28 and never hits"),
    "TUB-11": held(f"{HERE}::test_appends_go_on_while_the_other_buffer_is_written",
                   "test_message_store::test_an_append_waits_for_room_and_raises_busy_at_its_"
                   "deadline",
                   "test_message_store::test_an_old_buffer_is_flushed_and_old_writes_are_synced"),
    "TUB-12": held("test_mem_store::test_rows_and_batches_give_the_bytes_of_one_batch",
                   but="a buffer holds what it was given, and encodes both parts when it is "
                       "written or read: it is as large as what is in it"),
    "TUB-13": held(f"{HERE}::test_places_that_an_append_gives_are_those_in_the_files"),
    "TUB-14": held(f"{HERE}::test_places_that_an_append_gives_are_those_in_the_files"),
    "TUB-15": held("test_records::test_the_bytes_are_those_of_the_real_classes",
                   "test_golden_tube::test_the_same_messages_give_the_same_files"),
    "TUB-16": held("test_partition_index::test_a_look_up_is_what_a_mask_finds_after_every_step",
                   "test_topic_read::test_an_idle_partition_gives_the_end_to_go_on_from",
                   but="not the last place only, but the places of all messages, by key code too"),
    "TUB-17": held("test_message_store::test_offsets_are_given_out_in_order_without_gap_over_both_"
                   "buffers",
                   "test_message_store::test_many_threads_lose_nothing_and_repeat_nothing"),
    "TUB-18": held(f"{HERE}::test_few_messages_wait_in_memory_and_many_are_written_at_once",
                   "test_message_store::test_data_is_written_before_the_entries_that_point_to_it"),
    "TUB-19": held(f"{HERE}::test_each_store_of_a_topic_has_a_directory_and_its_10_000_numbers",
                   "test_filenames::test_a_segment_name_goes_there_and_back"),
    "TUB-20": held("test_file_store::test_a_batch_goes_into_one_file_and_the_roll_comes_after_it",
                   "test_segment_list::test_files_roll_after_the_write_that_fills_them"),
    "TUB-21": held("test_segment_list::test_only_the_last_segment_is_not_sealed",
                   "test_file_store::test_sealed_files_never_change"),
    "TUB-22": held(f"{HERE}::test_files_are_only_ever_written_at_their_end"),
    "TUB-23": held("test_file_store::test_a_full_file_is_synced_before_the_next_one_appears",
                   f"{HERE}::test_the_limits_are_tubemq_s_by_default"),
    "TUB-24": held("test_topic::test_an_index_file_takes_700_000_entries_by_default"),
    "TUB-25": held("test_message_store::test_a_sync_is_asked_for_after_so_many_messages_or_bytes",
                   "test_message_store::test_an_old_buffer_is_flushed_and_old_writes_are_synced"),
    "TUB-26": held("test_message_store::test_a_sync_is_asked_for_after_so_many_messages_or_bytes",
                   f"{HERE}::test_the_limits_are_tubemq_s_by_default"),
    "TUB-27": held("test_message_store::test_a_sync_is_asked_for_after_so_many_messages_or_bytes"),
    "TUB-28": held("test_message_store::test_an_old_buffer_is_flushed_and_old_writes_are_synced",
                   "test_workers::test_the_timer_maintains_every_shard"),
    "TUB-29": held("test_message_store::test_a_reader_sees_both_buffers_and_the_files_as_one",
                   "test_get_messages::test_buffers_are_read_unless_the_switch_says_files_only",
                   f"{HERE}::test_an_offset_is_found_in_every_file_and_in_memory",
                   but="`read` sees files and buffers whoever asks; TubeMQ's own call as TubeMQ"),
    "TUB-30": held(f"{HERE}::test_what_is_in_memory_is_read_without_touching_the_disk"),
    "TUB-31": held("test_segment_list::test_between_gives_the_segments_that_hold_the_bytes",
                   f"{HERE}::test_an_offset_is_found_in_every_file_and_in_memory"),
    "TUB-32": held("test_file_store::test_entries_are_found_in_the_file_that_holds_their_data",
                   f"{HERE}::test_an_offset_is_found_in_every_file_and_in_memory",
                   but="entries of other partitions are not looked at"),
    "TUB-33": held("test_kill::test_the_engine_has_everything_that_killed_writers_acknowledged",
                   "crash/test_crash_engine::test_the_engine_keeps_its_promises_in_every_crash_"
                   "state",
                   "test_recovery::test_a_shard_of_one_file_is_mended",
                   but="only what was acknowledged at level `memory` is lost; data and index are "
                       "verified"),
}  # fmt: skip


def functions_in(name: str) -> set[str]:
    path = TESTS / f"{name}.py"
    body = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_seeds_has_its_tests() -> None:
    assert list(ROWS) == [f"TUB-{number:02d}" for number in range(1, 34)]
    for row, (tests, _) in ROWS.items():
        assert tests, row
        for test in tests:
            name, _, function = test.partition("::")
            assert function in functions_in(name), f"{row}: there is no {test}"


def test_every_weakness_of_tubemq_has_its_tests_or_its_reason() -> None:
    page = (TESTS.parent / "tubestore" / "DESIGN.md").read_text()
    rows: dict[int, list[list[str]]] = {}
    for line in page[page.index("Where we differ from TubeMQ: writing") :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"\d+(, \d+)*", cells[0]):
            for number in cells[0].split(", "):
                rows.setdefault(int(number), []).append(cells)
    assert sorted(rows) == list(range(1, 30))
    for number, found in rows.items():
        for cells in found:
            assert len(cells) == 4, number
            named = re.findall(r"`(test_[a-z_]+|tests/[a-z_]+)`", cells[3])
            assert named or cells[3].startswith("by intent"), f"{number}: {cells[3]}"
            for name in named:
                path = TESTS / f"{name}.py" if name.startswith("test_") else TESTS.parent / name
                assert path.exists(), f"{number}: there is no {name}"


# -- what no other file tests ------------------------------------------------------------------


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
    assert isinstance(shard._flushing, MsgMemStore)
    assert (shard._flushing.count, shard._main.count) == (2, 1)
    assert bodies(shard.view()) == [row.payload for row in rows]
    vfs.may_go.set()
    flusher.join()
    assert shard._flushing is None
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
        acks = [topic.append(b"message %02d" % n, partition=n % 3) for n in range(40)]
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


def test_a_row_of_the_table_of_weaknesses_may_not_be_made_of_nothing() -> None:
    """The check of the names is one: a name that is nowhere is found."""
    assert "test_nothing" not in functions_in(HERE)
    assert functions_in("no_such_file") == set()
    assert make_row().payload == b"x"
