"""Options of writing: their defaults, and what is refused."""

from __future__ import annotations

import pytest

import tubestore
from tubestore.errors import InvalidOption
from tubestore.spark.kit.write_options import WRITE_TABLE, WriteOptions


@pytest.mark.parametrize(
    ("stream", "given", "says"),
    [
        (False, {"txnAppId": "q"}, "option txnAppId: only a stream has it"),
        (True, {"jobId": "j"}, "option jobId: a stream has txnAppId"),
        (True, {"txnAppId": "q:7"}, "it must not end in a colon and a number"),
        (False, {"jobId": "x" * 300}, "at most 200 characters"),
        (False, {"topic": "a/b"}, "option topic: 'a/b': only A-Z"),
        (False, {"numPartitions": "20000"}, "1 to 10000 a store"),
        (False, {"subscribe": "a"}, "option subscribe: not known"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    stream: bool, given: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        WriteOptions.parse({"path": "/s", **given}, stream=stream)
    assert says in str(caught.value)


def test_a_streams_checkpoint_is_not_an_option_here() -> None:
    of_the_query = {"checkpointLocation": "/c", "queryName": "q"}
    assert WriteOptions.parse({"path": "/s", **of_the_query}, stream=True).path == "/s"


def test_the_defaults_are_those_of_the_store() -> None:
    options = WriteOptions.parse({"path": "/s"})
    assert options.store == tubestore.StoreOptions()
    assert len({o.name for o in WRITE_TABLE}) == len(WRITE_TABLE)
