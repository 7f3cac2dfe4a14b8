"""The demo's damage is found and mended, and nothing else of the copy is different."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import rocketcompat
from rocketcompat.cli.demo import damage
from rocketcompat.messages import Message
from tubestore.cli.kit.demo import Steps


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with rocketcompat.open(tmp_path / "s", mode="w", background=False) as store:
        for number in range(240):
            message = Message(
                "T", b"message %0100d" % number, queue_id=number % 4, keys=[f"k{number}"]
            )
            store.put_message(message)
    return tmp_path / "s"


def mended(source: Path, copy: Path) -> tuple[bool, str]:
    text = io.StringIO()
    done = damage.damage_and_mend(source, copy, Steps(Console(file=text, width=120)))
    return done, text.getvalue()


def test_three_bodies_and_two_queues_are_damaged_and_mended(store: Path, tmp_path: Path) -> None:
    done, text = mended(store, tmp_path / "copy")
    assert done, text
    assert "3 differ, 3 marked as lost" in text
    assert "0 findings left" in text


def test_a_copy_without_damage_is_not_taken_for_a_mended_one(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "_damage", lambda root: None)
    done, text = mended(store, tmp_path / "copy")
    assert not done
    assert "0 differ, 0 marked as lost" in text
