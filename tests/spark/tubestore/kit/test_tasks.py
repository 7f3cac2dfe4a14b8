"""What a source reports of its plan and of damage: one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spark.sources import read, source
from tests.spark.sources import root as root
from tubestore.errors import CorruptRecord


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_the_planned_bytes_are_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(source(root))
    said = capsys.readouterr().err
    assert f"{root}: planned 1 splits, at most 1,050 messages and " in said
    assert "a where() filters afterwards" in said


def test_damage_is_a_sentence_too(root: Path) -> None:
    data = next((root / "orders-0").glob("*.tube"))
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptRecord):
        read(source(root, subscribe="orders", verifyCrc="true"))
    assert os.environ["SPARK_HIDE_TRACEBACK"]
