"""The packages' loggers in a program that configures no logging, and in one that does."""

from __future__ import annotations

import subprocess
import sys

import pytest

WARNS = """
import logging, sys
if sys.argv[1] == "configured":
    logging.basicConfig(format="%(name)s: %(message)s")
from tubestore.core.log import logger
import rocketcompat, tubestore
for name in ("tubestore.shard.workers", "rocketcompat.files.lock"):
    logger(name).warning("a warning")
"""


@pytest.mark.parametrize(
    ("how", "lines"),
    [
        ("plain", ""),
        ("configured", "tubestore.shard.workers: a warning\nrocketcompat.files.lock: a warning\n"),
    ],
)
def test_warnings_are_printed_where_logging_is_configured_only(how: str, lines: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARNS, how], capture_output=True, text=True, check=True
    )
    assert done.stderr == lines
