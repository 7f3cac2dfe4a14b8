"""Commands over golden stores."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.golden import Golden, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture

VERSIONS = ["4.9.8", "5.3.3"]


def records_in_queues(real: Golden) -> list[dict[str, Any]]:
    """The messages of the real answer that are records, without phantom units (R7)."""
    sizes = {row["physicalOffset"]: row["size"] for row in real.expected(type="record")}
    return [
        row
        for row in real.expected(type="message")
        if sizes.get(row["cqPhysicalOffset"]) == row["cqSize"]
        and f"{row['topic']}/{row['queueId']}" == row["queue"]
    ]


#: Opened by the real classes without loss: their answers are right.
SOUND = ["basic", "rolled", "keys-tags", "crash", "torn-half"]


@pytest.fixture(name="basic")
def basic_fixture(golden: GoldenFactory) -> Golden:
    return golden("rocketmq", "4.9.8", "basic")


def _program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rocketcompat", *map(str, arguments)]
