"""The one walk of the log: pieces and gaps in order, and what a judge of faults can answer."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import rocketcompat
from rocketcompat.commitlog.walk import (
    Again,
    Checks,
    Gap,
    Gaps,
    Piece,
    find_record,
    gap_of,
    walk,
)
from rocketcompat.inspect.log_files import LogFiles
from rocketcompat.messages import Message
from rocketcompat.options import LAYOUTS, MessageStoreConfig
from tubestore.testing import MemoryVfs

FILE = "/s/commitlog/00000000000000000000"
SIZE = 4096
COUNT = 6


@pytest.fixture
def places(memory_vfs: MemoryVfs) -> list[int]:
    """Physical offsets of the records of a log, and the one behind the last."""
    config = MessageStoreConfig(mapped_file_size_commit_log=SIZE, layouts=LAYOUTS)
    with rocketcompat.open("/s", "w", config, vfs=memory_vfs, background=False) as store:
        puts = [store.put_message(Message("T", b"x" * 100)) for _ in range(COUNT)]
        return [*(put.physical_offset for put in puts), store.max_physical_offset]


def log_of(vfs: MemoryVfs) -> LogFiles:
    return LogFiles(vfs, "/s", ["/s/commitlog"], SIZE)


def spoil(vfs: MemoryVfs, position: int) -> None:
    vfs.open(FILE).pwrite(b"\xff", position)


def refuse(position: int, fault: str) -> None:
    raise AssertionError(f"{position}: {fault}")


def walked(log: LogFiles, start: int, end: int, **given: object) -> list[int | tuple[int, int]]:
    """The records' places, and gaps as pairs."""
    found: list[int | tuple[int, int]] = []
    for one in walk(log, start, end, **given):  # type: ignore[arg-type]
        if isinstance(one, Piece):
            found += (one.starts + one.base).tolist()
        else:
            found.append((one.start, one.end))
    return found


def test_a_sound_log_is_one_chain_up_to_its_end(memory_vfs: MemoryVfs, places: list[int]) -> None:
    log = log_of(memory_vfs)
    assert walked(log, 0, places[-1], on_fault=refuse) == places[:-1]
    assert walked(log, places[2], places[4], on_fault=refuse) == places[2:4]


def test_a_known_gap_is_not_read(memory_vfs: MemoryVfs, places: list[int]) -> None:
    spoil(memory_vfs, places[2] + 4)
    log = log_of(memory_vfs)
    known = Gaps([gap_of(log, places[2], places[3], "spoiled")])
    expected = [*places[:2], (places[2], places[3]), *places[3:-1]]
    assert walked(log, 0, places[-1], on_fault=refuse, known=known) == expected
    # A walk that begins inside of it yields it whole.
    inside = walked(log, places[2] + 10, places[-1], on_fault=refuse, known=known)
    assert inside == expected[2:]


def test_the_walk_goes_on_behind_a_gap_that_the_judge_finds(
    memory_vfs: MemoryVfs, places: list[int]
) -> None:
    spoil(memory_vfs, places[2] + 4)
    log = log_of(memory_vfs)
    faults = []

    def judge(position: int, fault: str) -> Gap:
        faults.append(position)
        found = find_record(log, position + 1, places[-1])
        assert found is not None
        return gap_of(log, position, found, fault)

    expected = [*places[:2], (places[2], places[3]), *places[3:-1]]
    assert walked(log, 0, places[-1], on_fault=judge) == expected
    assert faults == [places[2]]


def ends_the_log(log: LogFiles, position: int) -> None:
    return None


def tears_it(log: LogFiles, position: int) -> Gap:
    return gap_of(log, position, position + 1, "torn off", "torn")


@pytest.mark.parametrize("answer", [ends_the_log, tears_it])
def test_the_walk_ends_where_the_judge_ends_the_log(
    memory_vfs: MemoryVfs, places: list[int], answer: Callable[[LogFiles, int], Gap | None]
) -> None:
    spoil(memory_vfs, places[2] + 4)
    log = log_of(memory_vfs)
    found = walked(log, 0, places[-1], on_fault=lambda at, _: answer(log, at))
    assert [one for one in found if isinstance(one, int)] == places[:2]
    assert len(found) == 2 + (answer is tears_it)


def test_a_place_is_read_again_when_the_judge_asks_for_it(
    memory_vfs: MemoryVfs, places: list[int]
) -> None:
    sound = memory_vfs.read_file(FILE)
    spoil(memory_vfs, places[2] + 4)
    log, faults = log_of(memory_vfs), []

    def judge(position: int, fault: str) -> Again:
        faults.append(position)
        memory_vfs.open(FILE).pwrite(sound[places[2] : places[3]], places[2])
        return Again.AGAIN

    assert walked(log, 0, places[-1], on_fault=judge) == places[:-1]
    assert faults == [places[2]]


def test_bodies_are_compared_where_it_is_asked_for(
    memory_vfs: MemoryVfs, places: list[int]
) -> None:
    body_at = memory_vfs.read_file(FILE).index(b"xxx", places[3])
    spoil(memory_vfs, body_at)
    log = log_of(memory_vfs)
    assert walked(log, 0, places[-1], on_fault=refuse) == places[:-1]
    found = walked(log, 0, places[-1], on_fault=lambda *_: None, checks=Checks())
    assert found == places[:3]


def test_what_only_we_have_written_is_judged_more_strictly_from_its_place_on(
    memory_vfs: MemoryVfs, places: list[int]
) -> None:
    log = log_of(memory_vfs)
    checks = Checks(own_from=places[3])
    pieces = [one for one in walk(log, 0, places[-1], on_fault=refuse, checks=checks)
              if isinstance(one, Piece) and len(one.starts)]  # fmt: skip
    assert [piece.end for piece in pieces] == [places[3], places[-1]]


def gap(start: int, end: int, belongs: int | None = None) -> Gap:
    return Gap(start, end, "damaged", "why", "f", 0, belongs)


def test_gaps_are_merged_in_order_without_those_inside_of_others() -> None:
    whole = gap(10, 50, belongs=90)
    found = Gaps.merged([gap(60, 70), gap(20, 30), gap(10, 50), whole, gap(50, 60)])
    assert found == (whole, gap(50, 60), gap(60, 70))


def test_gaps_know_which_one_is_over_an_offset_and_where_the_next_begins() -> None:
    gaps = Gaps([gap(10, 20), gap(20, 30), gap(50, 60)])
    assert [gaps.over(offset) for offset in (9, 10, 19, 20, 30)] == [
        None, gaps[0], gaps[0], gaps[1], None
    ]  # fmt: skip
    assert [gaps.next_start(offset, 55) for offset in (0, 10, 20, 50)] == [10, 20, 50, 55]
    assert gaps.next_start(20, 40) == 40


def test_a_gap_has_its_file_or_is_missing(memory_vfs: MemoryVfs, places: list[int]) -> None:
    log = log_of(memory_vfs)
    there = gap_of(log, places[1], places[2], "why")
    assert (there.state, there.path, there.position) == ("damaged", FILE, places[1])
    gone = gap_of(log, SIZE * 3, SIZE * 4, "why")
    assert (gone.state, gone.path, gone.size) == ("missing", f"/s/commitlog/{SIZE * 3:020d}", SIZE)


def test_a_walk_that_begins_with_few_bytes_finds_the_same_records(
    memory_vfs: MemoryVfs,
) -> None:
    """Records of any size, also larger than what is read at first, over files and damage."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    config = MessageStoreConfig(mapped_file_size_commit_log=1 << 16, layouts=LAYOUTS)
    with rocketcompat.open("/s", "w", config, vfs=memory_vfs, background=False) as store:
        sizes = [chosen.choice((0, 10, 300, 5000, 30_000)) for _ in range(80)]
        puts = [store.put_message(Message("T", b"x" * size)) for size in sizes]
        end = store.max_physical_offset
    log = LogFiles(memory_vfs, "/s", ["/s/commitlog"], 1 << 16)
    expected = [put.physical_offset for put in puts]
    for first in (1, 64, 1000, 1 << 14):
        assert walked(log, 0, end, on_fault=refuse, bytes_first=first) == expected


def test_a_record_is_found_behind_any_length_of_damage(memory_vfs: MemoryVfs) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=1 << 22, layouts=LAYOUTS)
    with rocketcompat.open("/s", "w", config, vfs=memory_vfs, background=False) as store:
        store.put_message(Message("T", b"x" * 3_000_000))
        last = store.put_message(Message("T", b"last"))
    log = LogFiles(memory_vfs, "/s", ["/s/commitlog"], 1 << 22)
    for start in (1, 1_000_000, 2_950_000, last.physical_offset):
        assert find_record(log, start, 1 << 22) == last.physical_offset
    assert find_record(log, last.physical_offset + 1, 1 << 22) is None
