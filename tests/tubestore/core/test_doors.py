"""Names that are loaded when they are first used, and the loggers of both packages."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rocketcompat.check
import rocketcompat.staging
import tubestore
import tubestore.staging

ROOMS = [
    ("rocketcompat.check", "check", "whole"),
    ("rocketcompat.dispatch", "ReputMessageService", "dispatcher"),
    ("rocketcompat.repair", "repair", "apply"),
    ("rocketcompat.staging", "StagedLogWriter", "writer"),
    ("rocketcompat.spark.jobs", "convert", "to_shards"),
    ("tubestore.staging", "StagedWriter", "writer"),
    ("rocketcompat", "Message", "messages"),
    ("rocketcompat", "MessageStoreConfig", "options"),
    ("tubestore", "Topic", "store.topic"),
]
LOOK = """
import importlib, sys
rooms = [line.split() for line in sys.stdin]
for room, _ in rooms:
    importlib.import_module(room)
print(*(module for room, module in rooms if f"{room}.{module}" in sys.modules), "are loaded")
"""


@pytest.mark.filterwarnings("ignore:rocketcompat.spark.jobs:DeprecationWarning")
@pytest.mark.parametrize(("room", "name", "module"), ROOMS)
def test_a_name_is_that_of_its_module(room: str, name: str, module: str) -> None:
    found = getattr(importlib.import_module(room), name)
    assert found is getattr(importlib.import_module(f"{room}.{module}"), name)


def test_the_import_of_a_room_loads_none_of_these_modules() -> None:
    rooms = "\n".join(f"{room} {module}" for room, _, module in ROOMS)
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=rooms, capture_output=True, text=True, check=False
    )
    assert done.stdout == "are loaded\n", done.stderr


@pytest.mark.parametrize(
    "room", [tubestore, tubestore.staging, rocketcompat.check, rocketcompat.staging]
)
def test_an_unknown_name_is_an_attribute_error_that_names_the_module(room: object) -> None:
    with pytest.raises(AttributeError, match=r"module '[a-z.]+' has no attribute 'nothing'"):
        room.nothing  # type: ignore[attr-defined]  # noqa: B018


WARNS = """
import logging, sys
if sys.argv[1] == "configured":
    logging.basicConfig(format="%(name)s: %(message)s")
from tubestore.core.doors import logger
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
