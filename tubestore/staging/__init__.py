"""Files made elsewhere, and the record that makes them part of a store; for shards and for a log.

Reading order: job_files, job_ids, commit_records, writer, placing, roll_forward,
publisher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tubestore.staging.writer import StagedWriter as StagedWriter

__all__ = ["StagedWriter"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the room's lower files are imported without it."""
    if name in __all__:
        import tubestore.staging.writer as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
