"""Options that many commands share, declared once: a command is made of a function that takes them.

    SHARED = (("format", FormatOption, Format.TEXT),)

    def command(function):
        return with_shared(function, SHARED, lambda taken: Given(**taken))

    @app.command()
    @command
    def stat(given: Given, topic: TopicOption = None) -> None: ...

The command line has the function's own arguments and options, and the shared ones behind them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

#: Name, annotation and default of a parameter; `REQUIRED` for one without a default.
Shared = tuple[str, Any, Any]
REQUIRED = inspect.Parameter.empty
#: The letters of both programs, and what they abbreviate; another letter has a row first.
LETTERS: dict[str, tuple[str, ...]] = {
    "-d": ("--durability",),
    "-f": ("--format", "--follow"),  # --follow in `tail` alone, as in Unix's
    "-g": ("--group",),
    "-h": ("--help",),
    "-i": ("--input",),
    "-k": ("--key",),
    "-n": ("--limit", "--lines"),  # --lines in `tail` alone, as in Unix's
    # An option of a store, as in ssh, where commands take these: in `rocketcompat` and in Spark's
    # jobs, which give --out no letter. A file in the other commands.
    "-o": ("--out", "--option"),
    "-p": ("--partition",),
    "-q": ("--queue",),
    "-t": ("--topic",),
    "-y": ("--yes",),
    # No letter: --end, in both programs a time that is not included, [--start, --end).
}


def with_shared(
    function: Callable[..., None],
    shared: Iterable[Shared],
    make: Callable[[dict[str, Any]], Any],
    first: Iterable[Shared] = (),
) -> Callable[..., None]:
    """Make a command of a function with the result of `make(shared values)` as its first parameter.

    `first` go in front of the function's own parameters, `shared` behind them.
    """
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    before, behind = list(first), list(shared)

    @functools.wraps(function)
    def command(**values: Any) -> None:
        taken = {name: values.pop(name) for name, _, _ in (*before, *behind)}
        function(make(taken), **values)

    kind = inspect.Parameter.KEYWORD_ONLY
    rows = [*before, *((p.name, hints[p.name], p.default) for p in own), *behind]
    parameters = [inspect.Parameter(n, kind, default=d, annotation=a) for n, a, d in rows]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
