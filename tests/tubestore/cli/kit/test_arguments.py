"""Arguments and options that several commands take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tubestore


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tubestore ret", ["retention"]),
        ("tubestore read {root} o", ["orders", "other"]),
        ("tubestore stat {root} --topic t", ["t"]),
        ("tubestore read {root}/nothing o", []),
    ],
)
def test_the_shell_completes_commands_and_topics(
    aged: Path, line: str, expected: list[str]
) -> None:
    with tubestore.open(aged) as store:
        store.create_topic("other")
        store.create_topic("orders")
    words = line.format(root=aged)
    environment = {
        "_TUBESTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "PYTHONPATH": str(Path(tubestore.__file__).parent.parent),
    }
    code = "from tubestore.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.stdout.decode().split() == expected
    assert done.stderr == b""
