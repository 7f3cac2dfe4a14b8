"""Options of writing into a log: what is refused."""

from __future__ import annotations

import pytest

from rocketcompat.spark.write_options import RocketWriteOptions
from tubestore.errors import InvalidOption


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"jobid": "a", "stream": "1"}, "a stream has txnAppId"),
        ({"numQueues": "0"}, "above 0"),
        ({"compat": "3.0"}, "4.9.8"),
        ({"maxIndexNum": "0"}, "above 0"),
        ({"numPartitions": "3"}, "numPartitions"),
    ],
)
def test_options_that_cannot_be_used_are_named(given: dict[str, str], reason: str) -> None:
    stream = given.pop("stream", None) is not None
    with pytest.raises(InvalidOption, match=reason):
        RocketWriteOptions.parse({"path": "/x", **given}, stream=stream)
