"""What the processes of a quiet session say is not heard, unless it does not start."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("needs_spark")


def complain(code: int = 0) -> None:
    subprocess.run(["sh", "-c", f"echo WARN >&2; exit {code}"], check=True)


def test_what_children_say_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    from tubestore.spark.laptop import unheard

    with unheard():
        complain()
    assert capfd.readouterr().err == ""
    complain()
    assert capfd.readouterr().err == "WARN\n"


def test_what_children_said_before_a_failure_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    from tubestore.spark.laptop import unheard

    with pytest.raises(subprocess.CalledProcessError), unheard():
        complain(1)
    assert capfd.readouterr().err == "WARN\n"
