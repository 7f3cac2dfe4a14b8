"""What a repair replaces is kept byte for byte."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture


def test_what_was_replaced_is_in_quarantine_byte_for_byte(
    golden: GoldenFactory, command: Command, tmp_path: Path
) -> None:
    real = golden("rocketmq", "4.9.8", "flip-body-middle-abort")
    before = {
        p.relative_to(real.store): p.read_bytes() for p in real.store.rglob("*") if p.is_file()
    }
    ages = {p: (real.store / p).stat().st_mtime_ns for p in before}
    place = tmp_path / "kept"
    done = command("repair", real.store, "--apply", "--quarantine", place, "-f", "jsonl")
    kept = {p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()}
    assert kept
    assert kept.items() <= before.items()
    for row in done.rows:
        path = Path(row["path"]).relative_to(real.store)
        if row["action"] == "write":
            assert path in kept
            # A broker deletes files by their age.
            assert (real.store / path).stat().st_mtime_ns == ages[path]
    assert Path("abort") in kept
