"""Jobs that put records behind the log ready-made.

Reading order: pieces, writer, placing, tails, roll_forward, publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcompat.staging.writer import StagedLogWriter as StagedLogWriter

__all__ = ["StagedLogWriter"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the room's lower files are imported without it."""
    if name in __all__:
        import rocketcompat.staging.writer as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
