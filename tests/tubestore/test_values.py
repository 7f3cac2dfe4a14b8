"""Ages and sizes."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from typing import Any

import pytest

from tubestore.errors import InvalidMessage
from tubestore.values import (
    age_ms,
    age_text,
    checked_seconds,
    moment_text,
    parse_age,
    parse_size,
    parse_time,
    size_bytes,
    size_text,
)

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("15m", 900_000),
        ("36h", 36 * HOUR),
        (" 7d ", 168 * HOUR),
        ("delete,168h", 168 * HOUR),
        ("delete,168", 168 * HOUR),
        ("delete, 90m", 5_400_000),
        ("delete,30s", 30_000),
        ("1.5h", 5_400_000),
        ("0.5s", 500),
    ],
)
def test_ages_are_texts_with_a_unit_or_tubemq_s_delete_policy(text: str, ms: int) -> None:
    assert parse_age(text) == age_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-7d", "7 days", "7w", "compact,168h", "delete", "delete,7d", "delete,x"]
)
def test_what_is_no_age_is_refused_and_not_taken_for_a_week(text: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a valid age"):
        parse_age(text)


@pytest.mark.filterwarnings("ignore:max_age = 5 is in milliseconds:FutureWarning")
@pytest.mark.parametrize(
    ("value", "ms"), [(None, None), (0, 0), (5, 5), (timedelta(days=7), 168 * HOUR)]
)
def test_ages_are_ms_or_timedeltas_too(value: Any, ms: int | None) -> None:
    assert age_ms(value) == ms


@pytest.mark.parametrize("value", [-1, timedelta(seconds=-1)])
def test_an_age_is_not_negative(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="not negative"):
        age_ms(value)


def test_a_float_is_no_age() -> None:
    with pytest.raises(TypeError, match="a timedelta"):
        age_ms(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500000", 500_000),
        ("512B", 512),
        ("10GiB", 10 << 30),
        ("10 GB", 10**10),
        ("64K", 64_000),
        ("2TiB", 2 << 40),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("1.3 KiB", 1331),
    ],
)
def test_sizes_have_decimal_and_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "1.5B", ".5GB", "1.GB", "1,5GB", "10 Gibibytes", "10gib"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a valid size"):
        parse_size(text)


def test_ages_sizes_and_moments_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [age_text(ms) for ms in (1, 1500, 90_000, 36 * HOUR, 48 * HOUR)] == [
        "1ms", "1500ms", "90s", "36h", "2d",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 40)] == ["0 B", "1023 B", "1 KiB", "5 TiB"]
    assert moment_text(0) == "1970-01-01T00:00:00Z"
    assert moment_text(1 << 62) == f"{1 << 62} ms"


def test_a_bare_number_for_an_age_is_ms_and_warns_at_the_caller_s_line() -> None:
    with pytest.warns(FutureWarning, match="max_age = 7 is in milliseconds: give '7ms'") as warned:
        assert age_ms(7) == 7
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (age_ms(0), age_ms("7ms"), age_ms(timedelta(0))) == (0, 7, 0)


def test_a_size_is_a_number_or_a_text_with_a_unit() -> None:
    sizes = [size_bytes(given) for given in (None, 0, 5, "5", "1GB", "1 GiB")]
    assert sizes == [None, 0, 5, 5, 1_000_000_000, 1 << 30]
    with pytest.raises(InvalidMessage, match=r"^limit: '1 GO' is not a valid size"):
        size_bytes("1 GO", "limit")
    with pytest.raises(InvalidMessage, match=r"^limit = -1: not negative"):
        size_bytes(-1, "limit")
    with pytest.raises(TypeError, match=r"^limit = 1.5: a whole number"):
        size_bytes(1.5, "limit")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (0, 0.0), (2, 2.0), (0.5, 0.5), ("1s", 1.0), ("500ms", 0.5), ("2m", 120.0), ("0.25s", 0.25),
        (" 1s ", 1.0), (timedelta(milliseconds=1500), 1.5), (timedelta(microseconds=5), 5e-6),
    ],
)  # fmt: skip
def test_waits_are_seconds_texts_or_timedeltas(given: Any, found: float) -> None:
    assert checked_seconds("timeout", given) == found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("7", "timeout: '7' is not a valid time span: seconds as a number, a timedelta, or '1s'"),
        ("soon", "timeout: 'soon' is not"),
        ("-1s", "timeout: '-1s' is not"),
        ("delete,7h", "timeout: 'delete,7h' is not"),
        (timedelta(seconds=-1), "timeout = -1 day, 23:59:59: 0 to 1000000000 seconds"),
        ("99999999h", "timeout = 99999999h: 0 to 1000000000 seconds"),
    ],
)
def test_a_wait_that_is_none_is_refused_by_its_name(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}"):
        checked_seconds("timeout", given)


def test_a_time_so_long_ago_may_have_a_fraction() -> None:
    assert parse_time("-1.5h", 10_000_000) == parse_time("1.5h", 10_000_000) == 4_600_000
