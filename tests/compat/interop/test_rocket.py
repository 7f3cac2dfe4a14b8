"""The real RocketMQ stores open what ours wrote, and ours what they wrote (decisions.md D1, D2).

Ours and theirs write to one directory in turns, cleanly, after kill -9 on either side, and over
each other's offsets. Whoever opens next must show every acknowledged message, field by field,
once in the log, its queue, the index and its shard.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest

import rocketcompat
from bench.real.drivers import (
    ROCKETMQ_VERSIONS,
    Row,
    of_kind,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.messages import Message
from rocketcompat.options import LAYOUTS
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.compat.interop.conftest import rocket_of as rocket
from tests.compat.interop.conftest import tube as tube
from tests.compat.interop.rocket_book import (
    Book,
    check_files,
    check_real,
    check_store,
    read_all,
    row_of_answer,
    row_of_message,
    rows_of,
)
from tests.compat.interop.rocket_messages import (
    BORN,
    SETTINGS,
    STORE_HOST,
    columns_of,
    config,
    message_of,
)
from tests.support import REPOSITORY
from tubestore.cli.kit.demo import kill_in_the_middle
from tubestore.errors import StoreFailed

pytestmark = [pytest.mark.gate, pytest.mark.interop]

OLD, NEW = ROCKETMQ_VERSIONS
FILE_SIZE = SETTINGS["mappedFileSizeCommitLog"]
BLANK_SIZE = 8
PROJECT = REPOSITORY


def opened(root: Path, version: str = OLD) -> DefaultMessageStore:
    return rocketcompat.open(root, mode="w", config=config(compat=version))


def visit(version: str, root: Path, book: Book, count: int = 25, close: bool = True) -> list[Row]:
    """Let the real store look at everything and append; note what it appended."""
    rows = rocket(version).visit(
        root, "orders", 4, count, keys=book.wanted_keys(), close=close, settings=SETTINGS
    )
    check_real(rows, book)
    book.take(rows)
    if close:
        assert of_kind(rows, "appended")[0]["maxPhyOffset"] == book.end
        assert of_kind(rows, "closed") == [{"kind": "closed", "abortFileLeft": False}]
    return rows


def put_many(store: DefaultMessageStore, book: Book, count: int) -> None:
    """Put messages of all kinds, one by one and in columns."""
    numbers = iter(range(len(book.rows), len(book.rows) + count))
    for number in numbers:
        if number % 40 == 20:
            rest = [n for n, _ in zip(numbers, range(12), strict=False)]
            book.put_columns(store, [message_of(n) for n in (number, *rest)])
        else:
            book.put(store, message_of(number))


def put_odd_ones(store: DefaultMessageStore, book: Book) -> None:
    """Put what the columns do not know, or seldom see."""
    given: dict[str, object] = {"born_timestamp": BORN, "store_host": STORE_HOST}
    raw = "KEYS\x01odd-1  odd-2\x02TAGS\x01 a || b \x02x\x01\x02"
    for message in (
        Message("orders", b"verbatim", properties=raw.replace("x\x01\x02", ""), **given),  # type: ignore[arg-type]
        Message("orders", b"by IPv6", keys="six", born_host="[2001:db8::7]:1234", **given),  # type: ignore[arg-type]
        Message("orders", b"half", keys="half-1", sys_flag=4, **given),  # type: ignore[arg-type]
        Message("orders", b"done", keys="half-1", sys_flag=8, **given),  # type: ignore[arg-type]
        Message("a-b", queue_id=10_001, flag=-1, **given),  # type: ignore[arg-type]
    ):
        book.put(store, message)


def fill_file(store: DefaultMessageStore, book: Book, left: int = 0) -> None:
    """Put messages until the log's file has `left` bytes besides those that a blank needs."""
    plain = Message("orders", born_timestamp=BORN, store_host=STORE_HOST)
    head = book.put(store, plain)["storeSize"]
    while True:
        room = FILE_SIZE - book.end % FILE_SIZE - BLANK_SIZE - left
        if room < head:
            plain.body = b"-"
            book.put(store, plain)
        elif room < 8000:
            plain.body = b"*" * (room - head)
            book.put(store, plain)
            break
        else:
            plain.body = b"+" * 5000
            book.put(store, plain)
    assert store.max_physical_offset % FILE_SIZE == FILE_SIZE - BLANK_SIZE - left


def publish(store: DefaultMessageStore, book: Book, job: str, numbers: range) -> None:
    """Stage messages in two tasks, publish them, and note them."""
    staged = []
    for task in (0, 1):
        messages = [message_of(n) for n in numbers[task::2]]
        with StagedLogWriter(store.root, job, f"{task}", config=store.config) as writer:
            writer.write(columns_of(messages))
            staged += writer.finish()
    result = store.publish(job, staged)
    told = iter([message_of(n) for task in (0, 1) for n in numbers[task::2]])
    for piece in StoreDirectory(store.root, SETTINGS).scan_log(result.start, result.end):
        assert isinstance(piece, RecordColumns)
        places = {
            "physicalOffset": piece.starts + piece.base,
            "queueOffset": piece.column("queue_offset"),
            "storeSize": piece.column("total_size"),
            "storeTimestamp": piece.column("store_timestamp"),
        }
        for row in range(len(piece)):
            place = {name: int(column[row]) for name, column in places.items()}
            book.rows.append(row_of_message(next(told)) | place)
    assert next(told, None) is None


class TestTurns:
    @pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
    def test_a_real_store_goes_on_behind_what_was_published(
        self, version: str, tmp_path: Path
    ) -> None:
        book = Book()
        with opened(tmp_path, version) as store:
            put_many(store, book, 30)
            publish(store, book, "small", range(1000, 1006))
            publish(store, book, "large", range(2000, 2600))
            assert book.end > FILE_SIZE
            put_many(store, book, 10)
            store.wait_dispatched(book.rows[-1]["physicalOffset"])
            check_store(store, book)
        check_files(tmp_path, book)
        visit(version, tmp_path, book)
        with opened(tmp_path, version) as store:
            publish(store, book, "behind theirs", range(3000, 3600))
        visit(version, tmp_path, book)

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
    def test_a_real_store_opens_a_log_in_which_a_killed_publish_was_finished(
        self, version: str, tmp_path: Path
    ) -> None:
        book = Book()
        with opened(tmp_path, version) as store:
            put_many(store, book, 30)
        dies = mock.patch(
            "rocketcompat.staging.publish.roll_forward", side_effect=OSError("killed")
        )
        store = opened(tmp_path, version)
        with dies, pytest.raises(StoreFailed):
            publish(store, book, "killed", range(1000, 1600))
        with pytest.raises(StoreFailed):
            store.close()
        with opened(tmp_path, version) as store:
            publish(store, book, "killed", range(1000, 1600))
        check_files(tmp_path, book)
        visit(version, tmp_path, book)

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
    def test_ours_takes_over_what_a_real_store_began(self, version: str, tmp_path: Path) -> None:
        book = Book()
        book.take(rocket(version).append(tmp_path, "orders", 4, 200, settings=SETTINGS))
        with rocketcompat.open(tmp_path, mode="w", config=config(), layouts={"index"}) as store:
            put_many(store, book, 30)
        with opened(tmp_path, version) as store:
            check_store(store, book)
            put_many(store, book, 30)
        check_files(tmp_path, book)
        visit(version, tmp_path, book)

    @pytest.mark.parametrize(
        "versions", [(OLD, NEW), pytest.param((NEW, OLD), marks=pytest.mark.slow)], ids="-".join
    )
    def test_ours_and_both_real_stores_write_in_turns(
        self, versions: tuple[str, str], tmp_path: Path
    ) -> None:
        book = Book()
        first, second = versions
        with opened(tmp_path, first) as store:
            put_many(store, book, 150)
            put_odd_ones(store, book)
            fill_file(store, book)
            put_many(store, book, 150)
            fill_file(store, book, left=1)
            put_many(store, book, 100)
            for in_columns in (False, True):  # room for one more, but for no blank behind it
                small = Message("orders", born_timestamp=BORN, store_host=STORE_HOST)
                size = book.put(store, small)["storeSize"]
                fill_file(store, book, left=size - 1)
                if in_columns:
                    book.put_columns(store, [small])
                else:
                    book.put(store, small)
                assert book.rows[-1]["physicalOffset"] % FILE_SIZE == 0
            put_many(store, book, 20)
            fill_file(store, book)  # the real store finds a full file without its blank
            check_store(store, book)
        check_files(tmp_path, book)
        visit(first, tmp_path, book)
        with opened(tmp_path, first) as store:
            check_store(store, book)
            put_many(store, book, 150)
        check_files(tmp_path, book)
        visit(second, tmp_path, book)
        with opened(tmp_path, second) as store:
            check_store(store, book)
            put_many(store, book, 20)
            check_store(store, book)
        check_files(tmp_path, book)
        assert len(list((tmp_path / "commitlog").iterdir())) > 5
        assert len(list((tmp_path / "consumequeue" / "orders" / "0").iterdir())) > 2
        assert len(list((tmp_path / "index").iterdir())) > 3


def killed(root: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> dict[int, tuple[int, int]]:
    """Kill -9 a writing child; return (physical, queue offset) of every number acknowledged."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    lines = kill_in_the_middle("tests.compat.interop.rocket_messages", root, after)
    assert len(lines) >= after
    assert (root / "abort").exists()
    return {int(number): (int(physical), int(queue)) for number, physical, queue in lines}


def book_of(rows: list[Row], acknowledged: dict[int, tuple[int, int]]) -> Book:
    """Make a book of what is there after a kill; everything acknowledged must be among it.

    What the child had put and not yet acknowledged may be there or not.
    """
    book = Book(rows)
    places = {row["flag"]: (row["physicalOffset"], row["queueOffset"]) for row in book.rows}
    assert len(places) == len(book.rows), "a message is there twice"
    lost = {n: place for n, place in acknowledged.items() if places.get(n) != place}
    assert not lost, f"{len(lost)} of {len(acknowledged)} lost"
    assert sorted(places) == list(range(len(places)))
    for row in book.rows:
        wanted = row_of_message(message_of(row["flag"]))
        assert {name: row[name] for name in wanted} == wanted
    return book


class TestKilled:
    @pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=pytest.mark.slow)])
    def test_the_real_store_recovers_what_our_killed_child_left(
        self, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acknowledged = killed(tmp_path, monkeypatch, after=700)
        wanted = Book([row_of_message(message_of(n)) | {"physicalOffset": place[0]}
                       for n, place in acknowledged.items()])  # fmt: skip
        rows = rocket(version).visit(
            tmp_path, "orders", 4, 25, keys=wanted.wanted_keys(), settings=SETTINGS
        )
        book = book_of([row_of_answer(row) for row in of_kind(rows, "message")], acknowledged)
        book.take_end(of_kind(rows, "store")[0]["maxPhyOffset"])
        check_real(rows, book, clean=False)
        book.take(rows)
        with opened(tmp_path, version) as store:
            check_store(store, book)
            put_many(store, book, 20)
            check_store(store, book)
        check_files(tmp_path, book)

    @pytest.mark.parametrize("version", [NEW, pytest.param(OLD, marks=pytest.mark.slow)])
    def test_the_real_store_opens_what_we_have_recovered(
        self, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acknowledged = killed(tmp_path, monkeypatch, after=700)
        with opened(tmp_path, version) as store:
            book = book_of(rows_of(read_all(store)), acknowledged)
            book.take_end(store.max_physical_offset)
            check_store(store, book)
        check_files(tmp_path, book)
        visit(version, tmp_path, book)

    @pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=pytest.mark.slow)])
    def test_ours_recovers_what_a_killed_real_store_left(
        self, version: str, tmp_path: Path
    ) -> None:
        book = Book()
        with opened(tmp_path, version) as store:
            put_many(store, book, 120)
        visit(version, tmp_path, book, count=150, close=False)
        assert (tmp_path / "abort").exists()
        with opened(tmp_path, version) as store:
            check_store(store, book)
            put_many(store, book, 120)
            check_store(store, book)
        check_files(tmp_path, book)
        visit(version, tmp_path, book)


#: Files so small that what is written over spans several of each kind.
TINY = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 20 * 10,
    "maxHashSlotNum": 7,
    "maxIndexNum": 50,
}
KEPT, WRITTEN = 60, 100


def like_theirs(number: int, longer: bytes = b"") -> Message:
    """Return a message as long as the one that the driver appends in this place, or longer."""
    return Message(
        "orders",
        b"ourself message %d" % number + longer,
        queue_id=number % 4,
        properties=f"KEYS\x01ourself-{number} ourself-all\x02TAGS\x01tag{number % 4}",
        born_timestamp=BORN,
        store_host=STORE_HOST,
    )


def zero_from(root: Path, offset: int) -> None:
    """Take the log's end away by hand."""
    size = TINY["mappedFileSizeCommitLog"]
    for path in (root / "commitlog").iterdir():
        start = int(path.name)
        if start >= offset:
            path.unlink()
        elif start + size > offset:
            with path.open("r+b") as file:
                file.seek(offset - start)
                file.write(bytes(start + size - offset))


def restore(root: Path, backup: Path) -> None:
    """Put an older copy of RocketMQ's own directories back; it knows nothing of ours."""
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(root / name)
        shutil.copytree(backup / name, root / name)
    shutil.copy2(backup / "checkpoint", root / "checkpoint")


def damage(root: Path, row: Row) -> None:
    """Flip a bit of a message's topic or body."""
    size = TINY["mappedFileSizeCommitLog"]
    path = root / "commitlog" / f"{row['physicalOffset'] // size * size:020d}"
    with path.open("r+b") as file:
        file.seek(row["physicalOffset"] % size + 90)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


class TestWrittenOver:
    @pytest.mark.parametrize(
        ("version", "way", "count", "close"),
        [
            (OLD, "zeroed", WRITTEN - KEPT, True),  # each record where one of ours stood
            pytest.param(NEW, "zeroed", WRITTEN - KEPT, True, marks=pytest.mark.slow),
            pytest.param(OLD, "restored", 90, True, marks=pytest.mark.slow),
            # The log ends before our old end.
            pytest.param(NEW, "restored", 25, False, marks=pytest.mark.slow),
            pytest.param(OLD, "restored", 25, True, marks=pytest.mark.slow),
            pytest.param(NEW, "restored", 90, False, marks=pytest.mark.slow),
        ],
    )
    def test_only_what_the_log_has_is_shown_where_a_broker_wrote_over_our_messages(
        self, version: str, way: str, count: int, close: bool, tmp_path: Path
    ) -> None:
        root, backup = tmp_path / "store", tmp_path / "backup"
        options = rocketcompat.MessageStoreConfig.from_camel({**TINY, "layouts": LAYOUTS})
        book = Book()
        with rocketcompat.open(root, mode="w", config=options) as store:
            for number in range(KEPT):
                book.put(store, like_theirs(number))
        shutil.copytree(root, backup)
        lost = Book()
        with rocketcompat.open(root, mode="w", config=options) as store:
            for number in range(KEPT, WRITTEN):
                lost.put(store, like_theirs(number))
        if way == "zeroed":
            zero_from(root, lost.rows[0]["physicalOffset"])
        else:
            restore(root, backup)
        rows = rocket(version).append(root, "orders", 4, count, close=close, settings=TINY)
        book.take(rows)
        again = {row["physicalOffset"] for row in lost.rows}
        both = again & {row["physicalOffset"] for row in book.rows}
        assert len(both) == min(count, WRITTEN - KEPT), "not what this test is about"
        with rocketcompat.open(root, mode="w", config=options) as store:
            check_store(store, book)
            for row in lost.rows:
                for key in row["properties"]["KEYS"].split()[:1]:
                    assert store.query_message("orders", key).physical_offsets == []
            for number in range(KEPT + count, KEPT + count + 20):
                book.put(store, like_theirs(number))
            check_store(store, book)
        check_files(root, book, TINY)
        rows = rocket(version).visit(root, "orders", 4, 3, keys=book.wanted_keys(), settings=TINY)
        check_real(rows, book)
        book.take(rows)
        with rocketcompat.open(root, mode="w", config=options) as store:
            check_store(store, book)
        check_files(root, book, TINY)

    @pytest.mark.parametrize("close", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_messages_that_a_broker_cut_off_and_wrote_up_to_are_back_as_it_shows_them(
        self, close: bool, tmp_path: Path
    ) -> None:
        """It leaves the file's bytes behind a cut, and its messages end where one begins there."""
        options = rocketcompat.MessageStoreConfig.from_camel({**TINY, "layouts": LAYOUTS})
        kept, lost = Book(), Book()
        with rocketcompat.open(tmp_path, mode="w", config=options) as store:
            for number in range(KEPT):
                kept.put(store, like_theirs(number))
            for number in range(KEPT, WRITTEN):
                lost.put(store, like_theirs(number))
        damage(tmp_path, lost.rows[0])
        count = 10
        rows = rocket(OLD).append(tmp_path, "orders", 4, count, close=close, settings=TINY)
        kept.take(rows)
        assert kept.end == lost.rows[count]["physicalOffset"], "not what this test is about"
        size = TINY["mappedFileSizeCommitLog"]
        file_end = (kept.end // size + 1) * size
        back = [row for row in lost.rows[count:] if row["physicalOffset"] < file_end]
        book = Book([*kept.rows, *back])
        check_real(rocket(OLD).dump(tmp_path, settings=TINY), book, clean=False)
        with rocketcompat.open(tmp_path, mode="w", config=options) as store:
            check_store(store, book)
        check_files(tmp_path, book, TINY)

    @pytest.mark.slow
    @pytest.mark.parametrize("close", [True, False])
    def test_messages_that_a_broker_cut_off_and_left_behind_its_own_do_not_come_back(
        self, close: bool, tmp_path: Path
    ) -> None:
        options = rocketcompat.MessageStoreConfig.from_camel({**TINY, "layouts": LAYOUTS})
        book, lost = Book(), Book()
        with rocketcompat.open(tmp_path, mode="w", config=options) as store:
            for number in range(KEPT):
                book.put(store, like_theirs(number))
            for number in range(KEPT, WRITTEN):
                lost.put(store, like_theirs(number, b"!"))
        damage(tmp_path, lost.rows[0])
        book.take(rocket(OLD).append(tmp_path, "orders", 4, 24, close=close, settings=TINY))
        assert lost.rows[0]["physicalOffset"] < book.end < lost.end
        with rocketcompat.open(tmp_path, mode="w", config=options) as store:
            check_store(store, book)
            for number in range(20):
                book.put(store, like_theirs(number))
            check_store(store, book)
        check_files(tmp_path, book, TINY)
