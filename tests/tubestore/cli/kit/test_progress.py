"""The bar of a long run: never in what is printed, and not before it is of use."""

from __future__ import annotations

import io
import sys

import pytest

from tubestore.cli.kit import progress
from tubestore.cli.kit.progress import bars, watched, watching


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal, where a bar appears at once; in the test: pytest sets it before."""
    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress._Bar, "quiet_seconds", 0.0)
    return shown


def test_what_is_printed_goes_to_the_file_and_the_bar_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with watching("checked") as watch:
        watch(1, 2)
        print("a finding")
        watch(2, 2)
    assert file.getvalue() == "a finding\n"
    assert "checked" in terminal.getvalue()
    assert "a finding" not in terminal.getvalue()


def test_on_one_terminal_the_bar_goes_before_a_line_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(sys, "stdout", terminal)
    with watching("checked") as watch:
        watch(1, 2)
        print("a finding")
        behind = terminal.getvalue().index("a finding")
    assert sys.stdout is terminal
    assert "checked" in terminal.getvalue()[:behind]
    assert terminal.getvalue()[:behind].endswith("\x1b[2K")  # the bar's line is empty


def test_a_short_run_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(progress._Bar, "quiet_seconds", 3600.0)
    with watching("checked") as watch:
        watch(1, 2)
    assert terminal.getvalue() == ""


def test_a_run_inside_of_another_has_no_bar_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    with watching("outer") as outer, watching("inner") as inner:
        outer(1, 2)
        inner(1, 2)
    assert "outer" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()
    with watching("after") as watch:
        watch(1, 2)
    assert "after" in terminal.getvalue()


def test_what_passes_a_bar_is_counted_and_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    assert list(watched(iter(["one", "two"]), "messages", len, 6)) == ["one", "two"]
    assert "messages" in terminal.getvalue()
    assert "6/6" in terminal.getvalue()


def test_bars_that_are_not_wanted_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with bars(False), bars(True), watching("hidden") as watch:
        watch(1, 2)
    assert terminal.getvalue() == ""
    with bars(True), watching("shown") as watch:
        watch(1, 2)
    assert "shown" in terminal.getvalue()
