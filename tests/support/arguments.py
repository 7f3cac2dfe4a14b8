"""Each argument of a public call with values that it does not take: what comes of them.

A call is tried with one bad value at a time. What may come out is an error of ours, or a ValueError
or TypeError whose sentence names the argument.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tubestore.errors import TubeStoreError

_THING = object()
#: By kind of argument: values that are refused. None is one unless the argument may be left out.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "whole": (None, "7", 1.5, True, float("nan"), b"7", [], {}, _THING),
    "count": (None, "7", 1.5, True, float("nan"), b"7", [], {}, _THING, -1),
    "seconds": (None, "7", "soon", timedelta(-1), float("nan"), b"7", [], {}, _THING, -1, 1e12,
                1 << 63, float("inf")),
    "time": (None, "soon", "7w", 1.5, True, float("nan"), [], {}, _THING),
    "size": (None, "7 GO", "", 1.5, True, float("nan"), b"7", [], {}, _THING, -1),
    "age": (None, -1, 1 << 62, timedelta(-1), 1.5, True, "soon", "", [], {}, _THING),
    "pieces": (None, 7, 1.5, True, "text", b"x", [7], [None], [{"x": 5}], _THING),
    "text": (None, 7, 1.5, True, b"x", [], {}, _THING),
    "name": (None, 7, 1.5, True, b"x", [], {}, _THING, "", "a/b", "a\0b", "\ud800"),
    "texts": (None, 7, 1.5, True, "text", [7], [None], [b"x"], _THING),
    "names": (None, 7, 1.5, True, "text", [7], [None], [b"x"], ["no such"], _THING),
    "choice": (None, 7, True, "no such", b"x", [], {}, _THING),
    "mapping": (None, 7, True, "text", b"x", [7], _THING),
    "rows": (None, 7, True, "text", b"x", [7], {"x": 5}, _THING),
    "bytes": (None, 7, 1.5, True, "text", [7], {}, b"", _THING),
    "body": (None, 7, 1.5, True, "text", [7], {}, _THING),
    "level": ("7", 1.5, b"7", [7], {5: 5}, _THING),
    "key": (None, 7, 1.5, True, [], {}, _THING, "\ud800"),
    "keys": (7, 1.5, True, b"x", [7], [None], ["a b"], _THING),
    "pairs": (7, 1.5, True, [], {"a": 5}, {"a": None}, {5: "a"}, {"a\1b": "c"}, _THING, "a\1\0"),
    "int32": (None, "7", 1.5, float("nan"), [], _THING, 1 << 31, -(1 << 31) - 1),
    "int64": (None, "7", 1.5, float("nan"), [], _THING, 1 << 63, -(1 << 63) - 1),
    "host": (None, 7, True, b"x", [], _THING, "", "nowhere", "1.2.3.4", "1.2.3.4:99999999999"),
    "offset": (None, "7", 1.5, True, float("nan"), b"7", [], {}, _THING, -1),
    "function": (7, True, "text", [], {}),
}  # fmt: skip
#: What no directory can have as its path.
ROOTS = ("", None, 7, b"s", "a\0b", ["s"])


def refuse_root(opens: Callable[[Any], Any], root: Any, here: Path) -> None:
    """Open a root that is no path in an empty directory: an error names it, and nothing is made."""
    with pytest.raises((TypeError, ValueError), match="root"), contextlib.chdir(here):
        list(opens(root))
    assert list(here.iterdir()) == []


def refused(kind: str) -> list[Any]:
    """Return the values that an argument of this kind does not take; "?" behind it allows None."""
    values = REFUSED[kind.removesuffix("?")]
    return [v for v in values if v is not None or not kind.endswith("?")]


def _result(call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Make a call, and go through what it returns if that is made on the way."""
    with warnings.catch_warnings():  # of ages as bare numbers, which are taken for one release
        warnings.filterwarnings("ignore", ".*is in milliseconds", FutureWarning)
        found = call(**arguments)
    if inspect.isgenerator(found):
        return list(found)
    return found.read_all() if hasattr(found, "read_all") else found


def mistakes(
    call: Callable[..., Any], given: Mapping[str, Any], kinds: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each bad value that is taken, or refused by an error that does not say why.

    `given`: arguments that are taken. `kinds`: of each argument; "?" behind one allows None.
    """
    signature = inspect.signature(call)
    bound = signature.bind(**given).arguments
    _result(call, bound)
    for name, kind in kinds.items():
        assert name in signature.parameters, name
        for value in refused(kind):
            shown = f"{getattr(call, '__name__', call)}({name}={value!r})"
            try:
                _result(call, {**bound, name: value})
            except (ValueError, TypeError) as error:
                if not isinstance(error, TubeStoreError) and name not in str(error):
                    yield f"{shown}: {error!r}"
                elif "\n" in str(error) or not str(error):
                    yield f"{shown}: not one sentence: {error!r}"
            except TubeStoreError:
                pass
            except Exception as error:
                yield f"{shown}: {error!r}"
            else:
                yield f"{shown}: taken"
