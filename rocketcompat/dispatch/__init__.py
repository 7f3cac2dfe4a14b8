"""One dispatcher that hands what was put to the structures built from the log.

Reading order: follower, batch, feed, gatherer, dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcompat.dispatch.dispatcher import ReputMessageService as ReputMessageService

__all__ = ["ReputMessageService"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the room's lower files are imported without it."""
    if name in __all__:
        import rocketcompat.dispatch.dispatcher as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
