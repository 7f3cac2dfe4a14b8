"""Cross-checks of log, queues, index and shards.

Reading order: findings, comparison, batches, queues, index, shards, whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcompat.check.whole import check as check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the room's lower files are imported without it."""
    if name in __all__:
        import rocketcompat.check.whole as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
