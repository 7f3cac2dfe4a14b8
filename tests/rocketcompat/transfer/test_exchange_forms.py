"""Each form in which a message is stored comes out of a copy as what it was.

A delayed message has its own topic in a property while it waits, and DELAY among its properties
for ever: a put of it would put it aside once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tests.support.command import Command
from tests.support.inner_batches import batch
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock

TIMER_TOPIC, HALF_TOPIC, OP_TOPIC = (
    "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
)  # fmt: skip
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    mapper_file_size_batch_consume_queue=5 * 46,
    max_hash_slot_num=16,
    max_index_num=400,
    layouts=frozenset({"consume_queue", "index"}),
    batch_topics=frozenset({"B"}),
    enable_multi_dispatch=True,
    enable_lmq=True,
)
OPTIONS = (
    "--option=mappedFileSizeCommitLog=65536", "--option=mappedFileSizeConsumeQueue=2000",
    "--option=mapperFileSizeBatchConsumeQueue=230", "--option=maxHashSlotNum=16",
    "--option=maxIndexNum=400", "--option=batchTopics=B", "--option=enableMultiDispatch=true",
    "--option=enableLmq=true",
)  # fmt: skip
#: What a new place in a log changes.
PLACED = {"physical_offset", "queue_offset", "store_timestamp", "msg_id"}
#: Those of the properties that are queue offsets.
OFFSETS = {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET"}


def put_all_forms(root: Path, config: MessageStoreConfig = CONFIG) -> None:
    clock = ManualClock()
    with rocketcompat.open(root, "w", config, clock=clock, background=False) as store:
        store.put_message(Message("orders", b"delivered", tags="paid", queue_id=2, delay_level=1))
        failed = store.put_message(Message("orders", b"consumed in vain", keys=["k"]))
        dispatcher_of(store).dispatch_pending()
        record = store.look_message(failed.physical_offset)
        store.send_back(record, "group", delay_level=1)
        clock.advance(1000)
        assert store.deliver_due() == 2
        store.put_message(Message("orders", b"waits", queue_id=1, delay_level=5))
        again = {"REAL_TOPIC": "orders", "REAL_QID": "3", "DELAY": "4", "TIMER_OUT_MS": "99"}
        untouched = -1
        store.put_message(Message(TIMER_TOPIC, b"timer", properties=again, delay_level=untouched))
        half = {"REAL_TOPIC": "orders", "REAL_QID": "1", "DELAY": "4", "TRAN_MSG": "true"}
        store.put_message(Message(HALF_TOPIC, b"half", properties=half, delay_level=untouched))
        store.put_message(Message(OP_TOPIC, b"0", tags="d"))
        for number, sys_flag in enumerate((4, 12, 8)):
            store.put_message(
                Message("bare", b"%d" % number, properties={"DELAY": "2"}, sys_flag=sys_flag,
                        delay_level=untouched, prepared_transaction_offset=number)
            )  # fmt: skip
        several = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
        store.put_message(Message("orders", b"several queues", properties=several))
        if config.compat == "5.3.3":
            store.put_inner_batch(batch(3))
            store.put_inner_batch(batch(2))
        store.put_message(Message("plain", b"last"))


def records(root: Path) -> list[dict[str, Any]]:
    return list(dump_log(StoreDirectory(root, {"batchTopics": "B"})))


def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        pairs = {k: v for k, v in row["properties"].items() if k not in OFFSETS}
        kept = {name: value for name, value in row.items() if name not in PLACED}
        found.append({**kept, "properties": pairs, "store_size": None})
    return found


@pytest.fixture(params=["4.9.8", "5.3.3"])
def compat(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path, compat: str) -> Path:
    put_all_forms(tmp_path / "a", CONFIG.changed(compat=compat))
    topics = [row["topic"] for row in records(tmp_path / "a")]
    assert topics.count(SCHEDULE_TOPIC) == 3
    assert "%RETRY%group" in topics
    assert topics.count("B") == (2 if compat == "5.3.3" else 0)
    return tmp_path / "a"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("suffix", ["csv", "arrow"])
@pytest.mark.parametrize("offsets", ["keep", "renumber"])
def test_every_stored_form_is_imported_as_what_it_was(
    command: Command, tmp_path: Path, root: Path, compat: str, offsets: str, suffix: str
) -> None:
    file, copy = tmp_path / f"f.{suffix}", tmp_path / "b"
    assert command("export", root, "--out", file, *OPTIONS).code == 0
    done = command("import", copy, file, "--offsets", offsets, *OPTIONS,
                   f"--option=compat={compat}")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    before, after = records(root), records(copy)
    if offsets == "renumber":
        before, after = ([{**r, "store_timestamp": None} for r in rows] for rows in (before, after))
    assert after == before  # the log is new, so the places are the same
    assert {f["reason"] for f in check(copy, {"batchTopics": "B"})} <= {"checkpoint"}


def test_a_second_import_gives_new_places_and_nothing_else(
    command: Command, tmp_path: Path, root: Path, compat: str
) -> None:
    file, copy = tmp_path / "f.jsonl", tmp_path / "b"
    command("export", root, "--out", file, *OPTIONS)
    for _ in range(2):
        done = command("import", copy, file, *OPTIONS, f"--option=compat={compat}")
        assert (done.code, done.err) == (0, "")
    rows = records(copy)
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert without_places(first) == without_places(second) == without_places(records(root))
    copies = [row["properties"].get("INNER_MULTI_QUEUE_OFFSET") for row in (*first, *second)]
    assert [text for text in copies if text] == ["0,0", "1,1"]


def test_every_stored_form_is_converted_as_what_it_was(
    command: Command, tmp_path: Path, root: Path
) -> None:
    done = command("convert", root, tmp_path / "b", *OPTIONS)
    assert (done.code, done.err) == (0, "")
    assert records(tmp_path / "b") == records(root)


def test_shards_of_every_stored_form_become_the_messages_that_they_were(
    command: Command, tmp_path: Path, compat: str
) -> None:
    root = tmp_path / "a"
    config = CONFIG.changed(compat="4.9.8", enable_multi_dispatch=False, enable_lmq=False)
    put_all_forms(root, config)
    assert command("convert", root, tmp_path / "shards", "--to", "tubestore").code == 0
    options = (*OPTIONS, f"--option=compat={compat}")
    done = command("convert", tmp_path / "shards", tmp_path / "b", *options)
    assert (done.code, done.err) == (0, "")

    def told(rows: list[dict[str, Any]]) -> list[Any]:
        kept = without_places(rows)
        return sorted((r["topic"], r["queue_id"], r["body"], sorted(r["properties"].items()))
                      for r in kept)  # fmt: skip

    in_shards = [row for row in records(root) if row["sys_flag"] & 12 in (0, 8)]
    assert told(records(tmp_path / "b")) == told(in_shards)


def test_a_row_written_by_hand_with_a_delay_is_a_new_message_that_waits(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text('{"topic":"T","queue_id":2,"properties":{"DELAY":"3","k":"REAL_TOPIC"}}\n')
    assert command("import", tmp_path / "s", file, *OPTIONS).code == 0
    (row,) = records(tmp_path / "s")
    assert (row["topic"], row["queue_id"]) == (SCHEDULE_TOPIC, 2)
    assert row["properties"]["REAL_TOPIC"] == "T"


@pytest.mark.parametrize("offsets", ["keep", "renumber"])
def test_a_waiting_message_whose_level_is_no_number_is_refused(
    command: Command, tmp_path: Path, offsets: str
) -> None:
    """A broker takes such a record for damaged."""
    file = tmp_path / "f.jsonl"
    file.write_text(
        '{"topic":"SCHEDULE_TOPIC_XXXX","queue_offset":0,"store_timestamp":5,'
        '"properties":{"DELAY":"soon","REAL_TOPIC":"T"}}\n'
    )
    done = command("import", tmp_path / "s", file, "--offsets", offsets, *OPTIONS)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "line 1: DELAY: 'soon'" in done.err
    assert not (tmp_path / "s").exists()


def test_a_message_of_several_queues_needs_the_option_before_anything_is_written(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "f.jsonl"
    pairs = '{"INNER_MULTI_DISPATCH":"%LMQ%a","INNER_MULTI_QUEUE_OFFSET":"7"}'
    file.write_text(f'{{"topic":"T"}}\n{{"topic":"T","properties":{pairs}}}\n')
    done = command("import", tmp_path / "s", file)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "line 2: INNER_MULTI_QUEUE_OFFSET" in done.err
    assert "enableMultiDispatch" in done.err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("offsets", ["keep", "renumber"])
@pytest.mark.parametrize("appends", ["true", "false"])
def test_the_checksum_of_a_whole_record_is_the_copys(
    command: Command, tmp_path: Path, offsets: str, appends: str
) -> None:
    config = CONFIG.changed(enabled_append_prop_crc=True)
    with rocketcompat.open(tmp_path / "a", "w", config, background=False) as store:
        for number in range(3):
            store.put_message(Message("T", b"%d" % number, tags="x", queue_id=number))
    file = tmp_path / "f.jsonl"
    command("export", tmp_path / "a", "--out", file)
    kept = file.read_text().splitlines()[1:]  # so the others move
    file.write_text("\n".join(kept))
    options = (*OPTIONS, f"--option=enabledAppendPropCRC={appends}")
    assert command("import", tmp_path / "b", file, "--offsets", offsets, *options).code == 0
    has_checksum = appends == "true" or offsets == "keep"
    verify = {"forceVerifyPropCRC": str(has_checksum).lower()}
    found = list(dump_log(StoreDirectory(tmp_path / "b", verify)))
    assert [(row["body"], row["state"]) for row in found] == [(b"1", "ok"), (b"2", "ok")]
    names = [list(row["properties"]) for row in found]
    assert names == [["TAGS", "__CRC32#"] if has_checksum else ["TAGS"]] * 2


def test_a_converted_store_delivers_nothing_that_the_old_one_has_delivered(
    tmp_path: Path, root: Path, command: Command, compat: str
) -> None:
    assert command("convert", root, tmp_path / "b", *OPTIONS).code == 0
    clock = ManualClock()
    config = CONFIG.changed(compat=compat)
    with rocketcompat.open(
        tmp_path / "b", "w", config, clock=clock, background=False
    ) as store:  # fmt: skip
        clock.advance(100_000)
        assert store.deliver_due() == 1
        dispatcher_of(store).dispatch_pending()
        assert store.get_message("orders", 1, 0).messages[-1].body == b"waits"
