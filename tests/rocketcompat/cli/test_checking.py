"""`rocketcompat check`: known damage is accepted, new damage is not."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.checked import patch
from tests.support.rocket.files.checked import store_fixture as store_fixture


def test_known_damage_is_accepted_and_new_damage_is_not(store: Path, command: Command) -> None:
    assert command("check", store).code == 0
    log = store / "commitlog" / f"{0:020d}"
    patch(log, 200, b"\xff\xff")
    before = command("check", store, "-f", "jsonl")
    assert before.code == 1
    done = command("check", store, "--accept", "-f", "jsonl")
    assert done.code == 0
    assert [row["severity"] for row in done.rows] == ["accepted"] * len(before.rows)
    again = command("check", store, "-f", "jsonl")
    assert (again.code, again.rows) == (0, [])
    assert f"{len(before.rows)} accepted findings are not shown" in again.err
    shown = command("check", store, "--all", "-f", "jsonl")
    assert (shown.code, shown.rows) == (0, done.rows)
    patch(log, 1500, b"\xff\xff")
    new = command("check", store, "-f", "jsonl")
    assert new.code == 1
    assert len(new.rows) > 0
    assert not [row for row in new.rows if row in before.rows]
    assert command("check", store, "--accept", "--limit", 1).code == 0
    assert command("check", store).code == 0  # also what the limit left out


def test_a_store_that_was_moved_keeps_what_was_accepted(
    store: Path, tmp_path: Path, command: Command
) -> None:
    patch(store / "commitlog" / f"{0:020d}", 200, b"\xff\xff")
    assert command("check", store, "--accept").code == 0
    moved = store.rename(tmp_path / "moved")
    assert command("check", moved).code == 0
    accepted = moved / ".tubestore" / "accepted.json"
    for content in (b"", b"{", b"[]", b'{"format":2}', b"[" * 100_000):
        accepted.write_bytes(content)
        done = command("check", moved)
        assert done.code == 1
        assert f"{accepted}: cannot be read" in done.err
