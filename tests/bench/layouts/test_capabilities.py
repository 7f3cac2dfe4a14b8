"""A layout's class is checked before anything is measured; a mistake is one clear line."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from bench.layouts.capabilities import Unavailable, checked, lacks
from bench.layouts.layout import MappedSingleLog, SingleLog, SingleLogAndShards, TopicSharded
from bench.layouts.peers import PEERS
from bench.run import main


def layout(**members: object) -> type:
    return type("Mine", (), {"close": lambda self: None, **members})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "Mine has no name"),
        ({"name": 7}, "Mine has no name"),
        ({"name": "mine"}, "Mine has no `capabilities`"),
        ({"name": "mine", "capabilities": "append"}, "Mine has no `capabilities`"),
        ({"name": "mine", "capabilities": {"apend"}}, "'apend' is not a capability"),
        ({"name": "mine", "capabilities": {"scan"}}, "declares 'scan' and has no method `scan`"),
        ({"name": "mine", "capabilities": {"threads"}, "close": None}, "has no method `close`"),
    ],
)
def test_a_class_that_declares_too_little_is_refused(
    members: dict[str, object], message: str
) -> None:
    with pytest.raises(Unavailable, match=re.escape(message)):
        checked(layout(**members))


@pytest.mark.parametrize(
    "make", [TopicSharded, SingleLog, MappedSingleLog, SingleLogAndShards, *PEERS]
)
def test_every_layout_here_has_the_methods_that_it_declares(make: type) -> None:
    assert checked(make) is make


def test_what_a_layout_lacks_is_named() -> None:
    mine = layout(name="mine", capabilities={"scan"})
    assert lacks(mine, {"scan"}) is None
    assert lacks(mine, {"scan", "read", "append"}) == "it does not declare append, read"


def test_a_layout_without_a_name_ends_the_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("own_layouts")
    module.Mine = layout()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_layouts", module)
    assert main(["--tiny", "--layout", "own_layouts:Mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: --layout own_layouts:Mine: Mine has no name")
