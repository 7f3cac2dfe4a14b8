"""State files: JSON objects with a version, refused with a reason where they are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tubestore.core.state_file import BadState, NewerState, parse_state, state_bytes


def test_what_was_written_is_read_with_its_version() -> None:
    found = parse_state(state_bytes({"a": [1]}))
    assert found == {"version": 1, "features": [], "a": [1]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "not a JSON object with a version"),
        (b"{}", "not a JSON object with a version"),
        (b'{"version": true}', "not a JSON object with a version"),
        (b'{"version": "1"}', "not a JSON object with a version"),
    ],
)
def test_what_is_no_state_is_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(BadState, match=words) as caught:
        parse_state(data)
    assert not isinstance(caught.value, NewerState)


@pytest.mark.parametrize(
    "content",
    [
        {"version": 2},
        {"version": 1, "features": ["new"]},
        {"version": 1, "features": ["known", "new"]},
        {"version": 1, "features": "known"},
        {"version": 1, "features": [1]},
    ],
)
def test_another_version_or_an_unknown_feature_is_of_another_version(
    content: dict[str, Any],
) -> None:
    with pytest.raises(NewerState, match="not of this version"):
        parse_state(json.dumps(content).encode(), {"known"})


@pytest.mark.parametrize("features", [[], None, ["known"]])
def test_known_features_are_taken(features: Any) -> None:
    content = {"version": 1, "features": features}
    assert parse_state(json.dumps(content).encode(), {"known"}) == content
