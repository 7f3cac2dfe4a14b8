"""A job with a commit record goes on, or is given up."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.staging.pieces import StagedPiece
from rocketcompat.staging.writer import StagedLogWriter
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.publishing import (
    CONFIG,
    batch,
    bodies,
    counted,
    findings,
    numbered,
    opened,
    pulled,
)
from tests.support.rocket.store.job_trouble import half_published
from tubestore.errors import JobTaken, NotAStore, StoreFailed


@pytest.mark.parametrize("count", [5, 60])
def test_a_job_does_not_go_over_what_another_writer_has_written_there(count: int) -> None:
    inner, path = half_published(count)
    if count == 60:
        file = inner.open(path, create=True)
        file.truncate(4096)
    else:
        file = inner.open(path)
    file.pwrite(b"a real broker was here", 2000 if count == 60 else 300)
    with pytest.raises(NotAStore, match="another process has written behind"):
        opened(inner)
    assert any("another process" in message for _, message in findings(inner))
    file.pwrite(bytes(22), 2000 if count == 60 else 300)  # as it is when it made the file ahead
    with opened(inner) as store:
        assert counted(pulled(store)) == count + 1
    assert bodies(inner) == [b"before", *numbered("a", count)]


def half_publish(root: str) -> list[StagedPiece]:
    """The same on a real disk, of 60 messages; returns what was staged."""
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        store.put_message(Message("orders", b"before"))
    store = rocketcompat.open(root, "w", CONFIG, background=False)
    with StagedLogWriter(root, "j", "0", config=CONFIG) as writer:
        writer.write(batch(numbered("a", 60)))
        pieces = writer.finish()
    with (
        mock.patch("rocketcompat.staging.publish.roll_forward", side_effect=OSError("killed")),
        pytest.raises(StoreFailed),
    ):
        store.publish("j", pieces)
    with pytest.raises(StoreFailed):
        store.close()
    return pieces


def test_the_command_recover_finishes_a_job_and_until_then_nothing_is_mended(
    tmp_path: Path, command: Command
) -> None:
    root = str(tmp_path)
    half_publish(root)
    sizes = ("-o", "maxHashSlotNum=16", "-o", "maxIndexNum=40")
    assert "half_published" in command("check", root, *sizes).out
    refused = command("repair", root, "--apply", *sizes)
    assert refused.code == 3
    assert "rocketcompat recover" in refused.err
    (row,) = command("recover", root, "--format", "jsonl", *sizes).rows
    assert row["job"] == "j"
    assert row["log_end"] > 60 * 60
    assert command("check", root, *sizes).code == 0
    (row,) = command("recover", root, "--format", "jsonl", *sizes).rows
    assert row["job"] is None


def test_a_job_that_cannot_go_on_is_given_up_when_that_is_asked_for(
    tmp_path: Path, command: Command
) -> None:
    root = str(tmp_path)
    pieces = half_publish(root)
    theirs = tmp_path / "commitlog" / f"{4096:020d}"
    theirs.write_bytes(b"a real broker was here".ljust(4096, b"\0"))
    sizes = ("-o", "maxHashSlotNum=16", "-o", "maxIndexNum=40")
    assert "recover --give-up" in command("recover", root, *sizes).err
    kept = tmp_path / "kept"
    given_up = command("recover", root, "--give-up", "--quarantine", kept, *sizes)
    assert given_up.code == 0
    assert "job 'j' was given up" in given_up.err
    assert list(kept.rglob("at-*"))
    assert command("check", root, *sizes).code == 0
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        for again in (pieces, []):
            with pytest.raises(JobTaken, match=r"1 of its \d+ files .*/kept/.*job-j"):
                store.publish("j", again)
        assert pulled(store) == [[b"before"], [], []]


def test_a_job_that_is_given_up_with_nothing_in_the_log_can_be_published_again(
    tmp_path: Path, command: Command
) -> None:
    root = str(tmp_path)
    half_publish(root)
    next(tmp_path.rglob("at-*")).unlink()
    sizes = ("-o", "maxHashSlotNum=16", "-o", "maxIndexNum=40")
    given_up = command("recover", root, "--give-up", *sizes)
    assert "nothing of it is in the store, so it can be published again" in given_up.err
    assert command("check", root, *sizes).code == 0
    with StagedLogWriter(root, "j", "1", config=CONFIG) as writer:
        writer.write(batch(numbered("a", 60)))
        pieces = writer.finish()
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        assert not store.publish("j", pieces).replayed
        assert counted(pulled(store)) == 61
        assert store.publish("j", pieces).replayed
