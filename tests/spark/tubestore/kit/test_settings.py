"""Settings of a session that cost something are named, each once a process."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from tubestore.spark.kit import settings
from tubestore.spark.kit.settings import BATCH_BYTES, PIPELINED, SOCKETS

GOOD = {SOCKETS: "true", PIPELINED: "false", BATCH_BYTES: "1m"}


@pytest.fixture(autouse=True)
def _advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_advised", set())


def session(**changed: str) -> Any:
    names = {"sockets": SOCKETS, "pipelined": PIPELINED, "batch": BATCH_BYTES}
    return SimpleNamespace(conf={**GOOD, **{names[n]: value for n, value in changed.items()}})


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, []),
        ({"sockets": "false"}, [(SOCKETS, "true")]),
        ({"pipelined": "TRUE"}, [(PIPELINED, "false")]),
        ({"batch": "4m"}, []),
        ({"batch": "5m"}, [(BATCH_BYTES, "1m")]),
        ({"batch": "nonsense"}, []),
    ],
)
def test_a_setting_that_costs_something_is_named_with_a_better_value(
    changed: dict[str, str], wanted: list[tuple[str, str]]
) -> None:
    found = settings.settings_to_change(session(**changed))
    assert [(advice.name, advice.wanted) for advice in found] == wanted


def test_a_session_is_warned_once_a_process_of_each_setting() -> None:
    with pytest.warns(UserWarning, match=rf"{SOCKETS}=true \(rows travel"):
        settings.check_settings(session(sockets="false"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.check_settings(session(sockets="false"))
    with pytest.warns(UserWarning, match=PIPELINED):
        settings.check_settings(session(pipelined="true"))
