"""What mends a damaged store: a plan, then a new file and a rename each.

Reading order: actions, overlay, log, places, queues, plan, apply, rebuild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcompat.repair.apply import repair as repair

__all__ = ["repair"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the room's lower files are imported without it."""
    if name in __all__:
        import rocketcompat.repair.apply as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
