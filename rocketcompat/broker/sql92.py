"""SQL92 filters on the properties of messages: RocketMQ's grammar and its rules for nulls.

    region = 'eu' AND (price BETWEEN 10 AND 20 OR NOT urgent IS NULL)

An expression is parsed once, by pyparsing (the extra `sql`), into functions of a message's
properties. RocketMQ's `rocketmq-filter` 5.3.3 decides each rule (`tests/compat/interop`):

- A property is a text, or null where the message has none. `=` and `<>` compare texts; beside a
  number the text is read as one, and `<`, `<=`, `>` and `>=` compare numbers only.
- A comparison with null is null, AND, OR and NOT have three values, and only true matches.
- A text that is no number beside a number, or two such texts beside `<`, fail the whole
  expression: the message does not match.
- BETWEEN, IN, IS NULL, and of 5.x CONTAINS, STARTSWITH and ENDSWITH, each with NOT. There is no
  LIKE and no arithmetic.

Difference from RocketMQ: what follows a complete expression is an error, and not ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rocketcompat.messages import MessageRecord
from tubestore.errors import InvalidMessage

_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_WHOLE = re.compile(r"[+-]?\d+")
#: What Java's `Double.valueOf` reads, after it has cut blanks and control characters off.
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)[fFdD]?)", re.ASCII)
_HEX = re.compile(
    r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII
)
_BLANKS = "".join(map(chr, range(33)))
_RESERVED = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH",
    "ENDSWITH",
})  # fmt: skip
Properties = Mapping[str, str]


class _Number(NamedTuple):
    """A number with its Java class: "int", "long" or "double"."""

    kind: str
    value: float


class _Failed(Exception):
    """An expression cannot be evaluated for a message."""


class _Illegal(Exception):
    """An expression has operands that cannot be together."""


Value = str | bool | _Number | None


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression."""

    evaluate: Callable[[Properties], Value]
    is_boolean: bool = False
    is_constant: bool = False
    is_property: bool = False
    value: Value = None


def compile_filter(expression: str) -> Callable[[MessageRecord], bool]:
    """Return a function that is true of the messages that match; InvalidMessage if it is wrong.

    >>> from types import SimpleNamespace
    >>> matches = compile_filter("a > 3 AND b IS NULL")
    >>> matches(SimpleNamespace(properties={"a": "4"})), matches(SimpleNamespace(properties={}))
    (True, False)
    """
    root = parse(expression)

    def matches(record: MessageRecord) -> bool:
        return evaluated(root, record.properties) is True

    return matches


def parse(expression: str) -> _Node:
    """Return the parsed expression; InvalidMessage with the place of an error."""
    try:
        import pyparsing
    except ImportError:
        raise InvalidMessage(
            "SQL92 filters are parsed by pyparsing: pip install 'tubestore[sql]'"
        ) from None
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidMessage(f"SQL92: {expression!r} is not an expression")
    try:
        found = _grammar(pyparsing).parse_string(expression, parse_all=True)[0]
        return _as_boolean(found)
    except pyparsing.ParseBaseException as error:
        place = f"at {error.loc}: {expression[error.loc : error.loc + 20]!r}"
        raise InvalidMessage(f"SQL92: {expression!r} is not valid {place}") from None
    except _Illegal as error:
        raise InvalidMessage(f"SQL92: {expression!r}: {error}") from None
    except RecursionError:
        raise InvalidMessage("SQL92: the expression is nested too deeply") from None


def evaluated(root: _Node, properties: Properties) -> bool | None:
    """Return the value of an expression for a message's properties; None for null or a failure."""
    try:
        found = root.evaluate(properties)
    except (_Failed, RecursionError):
        return None
    return found if isinstance(found, bool) else None


# -- the grammar


def _grammar(pp: Any) -> Any:
    """Return RocketMQ's grammar (`SelectorParser.jj`)."""
    blanks = " \t\n\r\f"

    def regex(pattern: str) -> Any:
        return pp.Regex(pattern).set_whitespace_chars(blanks)

    def word(name: str) -> Any:
        return regex(rf"(?i:{name})(?![A-Za-z0-9_$])").suppress()

    def sign(text: str) -> Any:
        return regex(re.escape(text)).suppress()

    text = regex(r"'(?:''|[^'])*'").set_parse_action(lambda t: t[0][1:-1].replace("''", "'"))
    real = regex(r"\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
    whole = regex(r"0|[1-9]\d*[lL]?")
    name = regex(r"[A-Za-z_$][A-Za-z0-9_$]*")
    name.add_condition(lambda t: t[0].upper() not in _RESERVED)
    anything, unary = pp.Forward(), pp.Forward()
    primary = (
        text.copy().add_parse_action(lambda t: _constant(t[0]))
        | real.set_parse_action(lambda t: _real(t[0]))
        | whole.set_parse_action(lambda t: _whole(t[0]))
        | word("TRUE").set_parse_action(lambda: _constant(True))
        | word("FALSE").set_parse_action(lambda: _constant(False))
        | word("NULL").set_parse_action(lambda: _constant(None))
        | name.add_parse_action(lambda t: _property(t[0]))
        | sign("(") + anything + sign(")")
    )
    unary <<= (
        sign("+") + unary
        | (sign("-") + unary).set_parse_action(lambda t: _negated(t[0]))
        | (word("NOT") + unary).set_parse_action(lambda t: _not(_as_boolean(t[0])))
        | primary
    )

    def then(parser: Any, make: Callable[..., _Node]) -> Any:
        """Return a parser of what follows an operand, as a function of that operand."""
        return parser.set_parse_action(lambda t: lambda left, given=tuple(t): make(left, *given))

    def either(make: Callable[..., _Node], parser: Callable[[], Any]) -> Any:
        """Return parsers for an operator and for its opposite with NOT."""
        negative = word("NOT") + parser()
        return then(parser(), partial(make, False)) | then(negative, partial(make, True))

    texts = pp.Group(sign("(") + text + pp.ZeroOrMore(sign(",") + text) + sign(")"))
    comparison = unary + pp.ZeroOrMore(
        then(sign(">=") + unary, partial(_ordered, lambda order: order >= 0))
        | then(sign(">") + unary, partial(_ordered, lambda order: order > 0))
        | then(sign("<=") + unary, partial(_ordered, lambda order: order <= 0))
        | then(regex(r"<(?!>)").suppress() + unary, partial(_ordered, lambda order: order < 0))
        | either(partial(_searched, str.__contains__), lambda: word("CONTAINS") + text)
        | either(partial(_searched, str.startswith), lambda: word("STARTSWITH") + text)
        | either(partial(_searched, str.endswith), lambda: word("ENDSWITH") + text)
        | either(_between, lambda: word("BETWEEN") + unary + word("AND") + unary)
        | either(_in, lambda: word("IN") + texts)
    )
    comparison.set_parse_action(_folded)
    equality = comparison + pp.ZeroOrMore(
        then(sign("=") + comparison, _equal)
        | then(sign("<>") + comparison, lambda left, right: _not(_equal(left, right)))
        | then(word("IS") + word("NULL"), _is_null)
        | then(word("IS") + word("NOT") + word("NULL"), lambda left: _not(_is_null(left)))
    )
    equality.set_parse_action(_folded)
    both = (equality + pp.ZeroOrMore(then(word("AND") + equality, _and))).set_parse_action(_folded)
    anything <<= (both + pp.ZeroOrMore(then(word("OR") + both, _or))).set_parse_action(_folded)
    whole_text = anything.copy().set_whitespace_chars(blanks)
    whole_text.ignore(pp.Regex(r"--[^\n\r]*(?:\r\n|\n|\r)|/\*(?:[^*]|\*(?!/))*\*/"))
    return whole_text


def _folded(tokens: Any) -> _Node:
    """Return an operand with the operators that follow it applied, from the left."""
    left: _Node = tokens[0]
    for apply in tokens[1:]:
        left = apply(left)
    return left


# -- operands


def _constant(value: Value) -> _Node:
    is_boolean = value is None or isinstance(value, bool)
    return _Node(lambda properties: value, is_boolean, is_constant=True, value=value)


def _whole(text: str) -> _Node:
    value = int(text.rstrip("lL"))
    if value > _LONG_MAX:
        raise _Illegal(f"{text} is too large")
    return _constant(_Number("int" if value <= _INT_MAX else "long", value))


def _real(text: str) -> _Node:
    value = float(text)
    if math.isinf(value) or value == 0:
        raise _Illegal(f"{text} is too {'large' if value else 'small'}")
    return _constant(_Number("double", value))


def _property(name: str) -> _Node:
    return _Node(lambda properties: properties.get(name), is_property=True)


def _as_boolean(node: _Node) -> _Node:
    if node.is_boolean:
        return node
    if not node.is_property:
        raise _Illegal("an operand is neither true nor false")

    def cast(properties: Properties) -> Value:
        return None if node.evaluate(properties) is None else False

    return _Node(cast, is_boolean=True)


def _negated(node: _Node) -> _Node:
    def negate(properties: Properties) -> Value:
        found = node.evaluate(properties)
        return found._replace(value=-found.value) if isinstance(found, _Number) else None

    return _Node(negate)


# -- operators


def _not(node: _Node) -> _Node:
    def opposite(properties: Properties) -> Value:
        found = node.evaluate(properties)
        return None if found is None else not found

    return _Node(opposite, is_boolean=True)


def _and(left: _Node, right: _Node) -> _Node:
    one, two = _as_boolean(left), _as_boolean(right)

    def both(properties: Properties) -> Value:
        first = one.evaluate(properties)
        if first is False:
            return False
        second = two.evaluate(properties)
        if second is False:
            return False
        return None if first is None or second is None else True

    return _Node(both, is_boolean=True)


def _or(left: _Node, right: _Node) -> _Node:
    one, two = _as_boolean(left), _as_boolean(right)

    def either(properties: Properties) -> Value:
        first = one.evaluate(properties)
        if first is True:
            return True
        second = two.evaluate(properties)
        if second is True:
            return True
        return None if first is None or second is None else False

    return _Node(either, is_boolean=True)


def _equal(left: _Node, right: _Node) -> _Node:
    if any(node.is_constant and node.value is None for node in (left, right)):
        raise _Illegal("NULL cannot be compared: use IS NULL")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise _Illegal("TRUE or FALSE cannot be compared with another constant")
    return _same(left, right)


def _is_null(left: _Node) -> _Node:
    return _same(left, _constant(None))


def _same(left: _Node, right: _Node) -> _Node:
    def same(properties: Properties) -> Value:
        one, two = left.evaluate(properties), right.evaluate(properties)
        if one is None or two is None:
            return True if one is two else None if one is None else False
        return _compared(one, two) == 0

    return _Node(same, is_boolean=True)


def _ordered(wanted: Callable[[int], bool], left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        is_number = isinstance(node.value, _Number)
        if node.is_boolean or (node.is_constant and not is_number):
            raise _Illegal("only numbers can be compared by <, <=, > and >=")

    def compare(properties: Properties) -> Value:
        one = left.evaluate(properties)
        two = None if one is None else right.evaluate(properties)
        if one is None or two is None:
            return None
        if isinstance(one, str) and isinstance(two, str):
            return wanted(_order(_double(one), _double(two)))
        return wanted(_compared(one, two))

    return _Node(compare, is_boolean=True)


def _between(negative: bool, value: _Node, low: _Node, high: _Node) -> _Node:
    if negative:
        below = _ordered(lambda order: order < 0, value, low)
        return _or(below, _ordered(lambda order: order > 0, value, high))
    above = _ordered(lambda order: order >= 0, value, low)
    found = _and(above, _ordered(lambda order: order <= 0, value, high))
    first, last = low.value, high.value
    if isinstance(first, _Number) and isinstance(last, _Number) and _compared(last, first) < 0:
        raise _Illegal("BETWEEN: the first number is above the second")
    return found


def _in(negative: bool, value: _Node, texts: Any) -> _Node:
    if not value.is_property:
        raise _Illegal("IN: only a property can be in a list")
    wanted = frozenset(texts)

    def is_in(properties: Properties) -> Value:
        found = value.evaluate(properties)
        return None if found is None else (found in wanted) != negative

    return _Node(is_in, is_boolean=True)


def _searched(
    search: Callable[[str, str], bool], negative: bool, value: _Node, wanted: str
) -> _Node:
    def is_there(properties: Properties) -> Value:
        found = value.evaluate(properties)
        if not wanted or not isinstance(found, str):
            return False
        return search(found, wanted) != negative

    return _Node(is_there, is_boolean=True)


# -- comparing as Java does


def _compared(one: str | bool | _Number, two: str | bool | _Number) -> int:
    """Return below 0, 0 or above 0 (`ComparisonExpression.__compare`)."""
    if isinstance(one, str) and isinstance(two, str):
        return 0 if one == two else 1
    if isinstance(one, bool) and isinstance(two, bool):
        return one - two
    if isinstance(one, bool):
        if isinstance(two, str):
            raise _Failed  # RocketMQ casts the wrong operand
        return -1
    if isinstance(two, bool):
        return (one.lower() == "true") - two if isinstance(one, str) else -1
    if isinstance(one, str):
        assert isinstance(two, _Number)
        return _order(_read(one, two.kind), two.value)
    if isinstance(two, str):
        return _order(one.value, _read(two, one.kind))
    if "double" in (one.kind, two.kind):
        return _order(float(one.value), float(two.value))
    return _order(one.value, two.value)


def _order(one: float, two: float) -> int:
    """Compare as `Double.compareTo`: NaN is above all, and -0.0 below 0.0."""
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) - math.isnan(two)
    if one == two == 0:
        return int(math.copysign(1, one) > math.copysign(1, two)) - int(
            math.copysign(1, one) < math.copysign(1, two)
        )
    return (one > two) - (one < two)


def _read(text: str, kind: str) -> float:
    """Return a text as a number of a Java class; _Failed if it is none."""
    if kind == "double":
        return _double(text)
    most = _INT_MAX if kind == "int" else _LONG_MAX
    if not _WHOLE.fullmatch(text) or not -most - 1 <= int(text) <= most:
        raise _Failed
    return int(text)


def _double(text: str) -> float:
    cut = text.strip(_BLANKS)
    if _DOUBLE.fullmatch(cut):
        return float(cut if "N" in cut or "I" in cut else cut.rstrip("fFdD"))
    if _HEX.fullmatch(cut):
        try:
            return float.fromhex(cut.rstrip("fFdD"))
        except OverflowError:
            return math.copysign(math.inf, -1 if cut.startswith("-") else 1)
    raise _Failed
