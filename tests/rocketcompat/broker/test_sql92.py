"""SQL92 filters: the grammar, nulls and numbers; the real classes decide beside it."""

from __future__ import annotations

import doctest
import sys

import pytest

from rocketcompat import Message
from rocketcompat.broker import sql92
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.pulling import PullRequest, PullStatus, Subscription
from rocketcompat.broker.sql92 import evaluated, parse
from tubestore.errors import InvalidMessage

PROPERTIES = {"a": "4", "b": "y", "t": "true", "n": "NaN", "x": "0x1p2", "s": " 4.0d "}


def value(expression: str) -> bool | None:
    return evaluated(parse(expression), PROPERTIES)


def test_the_example_does_what_it_shows() -> None:
    assert doctest.testmod(sql92) == (0, 3)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a = 4", True),
        ("a = '4'", True),
        ("a = '4.0'", False),
        ("a = 4.0", True),
        ("4 = a", True),
        ("a <> 4", False),
        ("a > 3 and A IS NULL", True),  # names have cases, keywords have not
        ("a >= 4 AND a <= 4 AND a < 5 AND NOT (a > 4)", True),
        ("a BETWEEN 3 AND 5", True),
        ("a NOT BETWEEN -3 AND 3L", True),
        ("b IN ('x', 'y')", True),
        ("b NOT IN ('x')", True),
        ("b IN ('it''s')", False),
        ("b IS NOT NULL", True),
        ("c IS NULL", True),
        ("b CONTAINS 'y' AND b STARTSWITH 'y' AND b ENDSWITH 'y'", True),
        ("b NOT CONTAINS ''", False),
        ("c NOT CONTAINS 'x'", False),
        ("t = TRUE", True),
        ("b = FALSE", True),
        ("TRUE", True),
        ("NOT FALSE", True),
        ("b", False),
        ("NOT b", True),
        ("n > 1e300", True),
        ("x = 4.0 AND s = 4.0", True),
        ("a /* four */ = 4 -- indeed\n AND TRUE", True),
        ("a = 1 OR a = 2 AND b = 'z' OR a = +4", True),
        ("a > -5", True),
        ("- a = 4", None),
    ],
)
def test_an_expression_has_its_value(expression: str, wanted: bool | None) -> None:
    assert value(expression) is wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("c = 4", None),
        ("4 = c", False),
        ("NOT c", None),
        ("c > 4", None),
        ("c IN ('x')", None),
        ("c = d", True),
        ("c = 4 AND b = 'z'", False),
        ("c = 4 AND b = 'y'", None),
        ("c = 4 OR b = 'y'", True),
        ("c = 4 OR b = 'z'", None),
        ("c IS NULL OR c = 4", True),
    ],
)
def test_a_missing_property_is_null(expression: str, wanted: bool | None) -> None:
    assert value(expression) is wanted


@pytest.mark.parametrize(
    "expression",
    ["b > 4 OR a = 4", "b = 4", "b < a", "TRUE = b", "s = 4", "a = 4 AND b = 5"],
)
def test_a_text_that_is_no_number_fails_the_expression(expression: str) -> None:
    assert value(expression) is None


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "a =", "= 4", "a = 4 b", "(a = 4", "a = 'x", "a BETWEEN 5 AND 4", "a LIKE 'x'",
        "a = NULL", "NULL <> a", "TRUE = 1", "'x'", "4", "a > 'x'", "a > TRUE", "(a = 4) > 3",
        "4 IN ('x')", "a IN (4)", "a IN ()", "a CONTAINS 4", "a + 4 = 8", "NOT 'x'", "a AND 'x'",
        "a = 9223372036854775808", "a = 1e999", "a = 0.0", "in = 4", "a = 007",
        "a BETWEEN NULL AND 4",
        "(" * 5000 + "a" + ")" * 5000,
    ],
)  # fmt: skip
def test_a_wrong_expression_is_refused_when_it_is_given(expression: str) -> None:
    with pytest.raises(InvalidMessage, match="SQL92"):
        Subscription("orders", expression, "SQL92")


def test_an_error_names_its_place() -> None:
    with pytest.raises(InvalidMessage, match="at 10: '>'"):
        parse("a = 4 > 3 >")


def test_a_pull_has_only_matching_messages(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    for number in range(6):
        broker.send(Message("orders", b"%d" % number, properties={"price": str(number)}))
    broker.step()
    wanted = Subscription("orders", "price BETWEEN 2 AND 3", "SQL92")
    found = broker.pull(PullRequest("g", "orders", 0, 0, subscription=wanted))
    assert [message.body for message in found.messages] == [b"2", b"3"]
    assert found.next_begin_offset == 6
    none = Subscription("orders", "price > 9", "SQL92")
    found = broker.pull(PullRequest("g", "orders", 0, 0, subscription=none))
    assert (found.status, found.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 6)


def test_without_the_extra_an_expression_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyparsing", None)
    with pytest.raises(InvalidMessage, match=r"tubestore\[sql\]"):
        Subscription("orders", "a = 4", "SQL92")
