"""The caches of a shard: versions and content that make no sense are refused."""

from __future__ import annotations

import json

import pytest

from tubestore.segments.cache_formats import Checkpoint


@pytest.mark.parametrize("damages", ["x", [[5, 5, "empty"]], [[1, 2]], [["1", 2, "text"]], [{}]])
def test_damages_that_make_no_sense_are_no_checkpoint(damages: object) -> None:
    fields = {"index_end": 0, "data_end": 9, "index_digest": "", "data_digest": ""}
    good = json.dumps({**fields, "damages": [[1, 2, "why"]]}).encode()
    assert Checkpoint.parse(good).damages == [[1, 2, "why"]]
    with pytest.raises(ValueError, match=r"damages|kind"):
        Checkpoint.parse(json.dumps({**fields, "damages": damages}).encode())
