"""What a layout declares that it can do, and what a workload needs of it.

A layout is a class with a `name` and with `capabilities`; each capability names the methods below.
A workload declares what it needs. A layout that lacks some of it is left out, with this reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: The methods that a layout has for each capability.
METHODS: dict[str, tuple[str, ...]] = {
    "append": ("append", "flush"),
    "batch": ("append_batch", "flush"),
    "read": ("read", "bodies"),
    "follow": ("follow",),
    "scan": ("scan",),
    "by_key": ("find_key",),
    "by_time": ("offset_at",),
    "filter": ("filtered",),
    "transfer": ("transfer",),
    "retain": ("retain",),
    # Without a method of their own: `append` from several threads at once; the durability
    # "fsync"; bodies of different lengths; opening what was closed, and what a kill has left.
    "threads": (),
    "fsync": (),
    "sizes": (),
    "reopen": (),
    "recover": (),
}
#: What every layout has, whatever it declares.
ALWAYS = ("close",)


class Unavailable(Exception):
    """It cannot be measured here; the text contains the reason and what to do."""


def checked(layout: Any) -> Any:
    """Return a layout's class after checking its name, its capabilities and their methods."""
    label = getattr(layout, "__qualname__", repr(layout))
    name, declared = getattr(layout, "name", None), getattr(layout, "capabilities", None)
    if not isinstance(name, str) or not name:
        raise Unavailable(f"{label} has no name; give the class a `name`, which the tables print")
    if "/" in name or name.startswith("."):
        raise Unavailable(f"{label}: its name {name!r} cannot be that of its directory")
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        known = ", ".join(METHODS)
        raise Unavailable(f"{label} has no `capabilities`; name those of {known} that it has")
    unknown = sorted(map(str, set(declared) - METHODS.keys()))
    if unknown:
        raise Unavailable(
            f"{label}: {unknown[0]!r} is not a capability; there are {', '.join(METHODS)}"
        )
    for capability in sorted(declared):
        for method in (*METHODS[capability], *ALWAYS):
            if not callable(getattr(layout, method, None)):
                raise Unavailable(f"{label} declares {capability!r} and has no method `{method}`")
    return layout


def lacks(layout: Any, needs: Iterable[str]) -> str | None:
    """Return the reason why a layout cannot take part; None if it has what is needed."""
    missing = sorted(set(needs) - set(layout.capabilities))
    return f"it does not declare {', '.join(missing)}" if missing else None
