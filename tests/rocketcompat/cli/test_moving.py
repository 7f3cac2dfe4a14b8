"""`rocketcompat export | import | convert | diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rocketcompat
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture


def test_a_conversion_of_an_empty_directory_is_refused_and_makes_nothing(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = command("convert", tmp_path / "empty", tmp_path / "copy")
    assert (done.code, done.out) == (3, "")
    assert "neither a RocketMQ store nor shards" in done.err
    assert not (tmp_path / "copy").exists()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two messages, one of them UTF-8, in small files."""
    root = tmp_path / "store"
    config = rocketcompat.MessageStoreConfig(
        mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=2000,
        max_hash_slot_num=8, max_index_num=32,
    )  # fmt: skip
    with rocketcompat.open(root, mode="w", config=config) as opened:
        for body in ("grün".encode(), b"\xff"):
            opened.put_message(rocketcompat.Message("orders", body, keys=["o-1"]))
    return root


def test_a_body_is_mended_by_hand_without_base64(
    store: Path, command: Command, tmp_path: Path
) -> None:
    file, copy = tmp_path / "all.jsonl", tmp_path / "copy"
    done = command("export", store, "--out", file, "--text")
    assert (done.code, done.err) == (0, f"2 messages in {file}\n")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row.get("text"), row.get("body")) for row in rows] == [("grün", None), (None, "/w==")]
    file.write_text(file.read_text().replace("gr\\u00fcn", "blau"))
    assert command("import", copy, file, "-o", "mappedFileSizeCommitLog=65536").code == 0
    with rocketcompat.open(copy) as opened:
        read = opened.get_message("orders", 0, 0)
    assert [message.body for message in read.messages] == [b"blau", b"\xff"]


def test_an_export_reports_the_damage_that_it_left_out(
    store: Path, command: Command, tmp_path: Path
) -> None:
    (log,) = sorted((store / "commitlog").iterdir())[:1]
    data = bytearray(log.read_bytes())
    data[4:8] = b"\xff" * 4  # the first record's kind
    log.write_bytes(data)
    done = command("export", store, "--out", tmp_path / "all.jsonl", "--text")
    assert (done.code, len((tmp_path / "all.jsonl").read_text().splitlines())) == (1, 1)
    assert "left out: damaged regions of the log: 1; `rocketcompat check` lists them" in done.err


def test_a_text_beside_a_body_is_refused_with_its_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "both.jsonl"
    file.write_text('{"topic": "t", "text": "a"}\n{"topic": "t", "text": "a", "body": "YQ=="}\n')
    done = command("import", tmp_path / "new", file)
    assert done.code != 0
    assert "line 2: text: a text is needed, and no body (base64) beside it" in done.err
    assert not (tmp_path / "new").exists()


def test_two_equal_stores_have_no_difference_and_the_command_prints_that(
    store: Path, command: Command
) -> None:
    done = command("diff", store, store)
    assert (done.code, done.err) == (0, "no difference found\n")
