"""Options of a DataFrame may be Python values; Spark gets their texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tubestore.spark.kit.frames import as_text, texts_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5"),
        ("a", "a"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        ({"t": {0: 28}}, '{"t": {"0": 28}}'),
        ({"t": [0, 1]}, '{"t": [0, 1]}'),
        (["a", "b"], "a,b"),
        (range(3), "0,1,2"),
    ],
)
def test_a_value_becomes_the_text_that_the_option_is_read_from(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_a_job_id_is_one_of_the_options_only_if_there_is_one() -> None:
    assert texts_of({"topic": "t"}) == {"topic": "t"}
    assert texts_of({"topic": "t"}, "j") == {"topic": "t", "jobId": "j"}
