"""`rocketcompat copy`: a topic's messages in another topic, of the same store or of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from tests.rocketcompat.repair.test_rebuild import SMALL
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest

KEPT = ("queue_id", "body", "properties", "flag", "born_timestamp", "born_host", "reconsume_times")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with rocketcompat.open(root, "w", SMALL, background=False) as store:
        for n in range(30):
            store.put_message(
                Message("orders" if n % 3 else "other", b"%d" % n, "paid" if n % 2 else "sent",
                        [f"o-{n}"], {"region": "eu"}, n % 4, n, born_timestamp=n + 1)
            )  # fmt: skip
    return root


def rows(root: Path, topic: str) -> list[dict[str, object]]:
    return [row for row in dump_log(StoreDirectory(root)) if row["topic"] == topic]


def kept(root: Path, topic: str) -> list[list[object]]:
    return [[row[name] for name in KEPT] for row in rows(root, topic)]


def test_a_topic_is_copied_within_its_store(command: Command, root: Path) -> None:
    done = command("copy", root, "orders", "orders-again", "-f", "jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.rows == [
        {"topic": "orders-again", "messages": 20, "left_out": 0, "damaged_regions": 0}
    ]
    assert kept(root, "orders-again") == kept(root, "orders")
    assert {finding["reason"] for finding in check(root)} <= {"checkpoint"}
    with rocketcompat.open(root) as store:
        assert len(store.query_message("orders-again", "o-1")) == 1


def test_a_topic_is_copied_behind_itself_once(command: Command, root: Path) -> None:
    assert command("copy", root, "orders", "orders", "-f", "jsonl").rows[0]["messages"] == 20
    found = kept(root, "orders")
    assert found == found[:20] * 2


def test_conditions_choose_what_is_copied(command: Command, root: Path) -> None:
    command("copy", root, "orders", "paid", "--tags", "paid", "-q", "1")
    wanted = [
        row
        for row in rows(root, "orders")
        if row["queue_id"] == 1 and row["properties"]["TAGS"] == "paid"
    ]  # type: ignore[index]
    assert [row["body"] for row in rows(root, "paid")] == [row["body"] for row in wanted]
    assert wanted


def test_a_copy_of_no_message_is_done_and_makes_nothing(
    command: Command, root: Path, tmp_path: Path
) -> None:
    late = ["--start", "2100-01-01T00:00:00Z", "-f", "jsonl"]
    done = command("copy", root, "orders", "late", "--to", tmp_path / "other", *late)
    assert (done.code, done.rows[0]["messages"]) == (0, 0)
    assert not (tmp_path / "other").exists()
    assert command("copy", root, "misspelt", "late", *late).code == 1


def test_a_copy_into_another_store_leaves_the_source_as_it_is(
    command: Command, root: Path, tmp_path: Path
) -> None:
    before, other = digest(root), tmp_path / "other"
    sizes = ["-o", "mappedFileSizeCommitLog=4096"]
    assert command("copy", root, "orders", "orders", "--to", other, *sizes).code == 0
    assert command("copy", root, "other", "more", "--to", other).code == 0
    assert digest(root) == before
    assert kept(other, "orders") == kept(root, "orders")
    assert kept(other, "more") == kept(root, "other")
    assert {path.stat().st_size for path in (other / "commitlog").iterdir()} == {4096}


def test_an_unknown_topic_is_refused_before_a_store_is_made(
    command: Command, root: Path, tmp_path: Path
) -> None:
    done = command("copy", root, "order", "x", "--to", tmp_path / "new")
    assert done.code != 0
    assert "orders" in done.err
    assert not (tmp_path / "new").exists()


def test_damage_is_left_out_and_counted(command: Command, root: Path, tmp_path: Path) -> None:
    """What cannot be read may have been of the topic: the copy ends with 1."""
    record = rows(root, "orders")[5]
    path = next(iter(sorted((root / "commitlog").iterdir())))
    at = record["physical_offset"]
    assert isinstance(at, int)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 8)
    done = command("copy", root, "orders", "orders", "--to", tmp_path / "new", "-f", "jsonl")
    assert (done.code, done.rows[0]["damaged_regions"]) == (1, 1)
    assert done.rows[0]["messages"] == 19


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_topic_of_a_real_store_is_copied(
    golden: GoldenFactory, command: Command, tmp_path: Path, version: str
) -> None:
    real = golden("rocketmq", version, "keys-tags")
    (topic, *_) = sorted({row["topic"] for row in dump_log(StoreDirectory(real.store))})
    assert command("copy", real.store, topic, "again", "--to", tmp_path / "new").code == 0
    assert kept(tmp_path / "new", "again") == kept(real.store, topic)
