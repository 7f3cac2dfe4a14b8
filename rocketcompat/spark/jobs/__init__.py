"""Jobs over whole RocketMQ stores, worked on in tasks: copies, rebuild, audit, statistics.

Reading order: log_parts, log_scanning, rebuild_tasks, rebuild, audit_tasks, audit, id_splits,
to_shards, to_log, stats.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what was in this module before it became a room; goes with the next release."""
    if name not in {"ConvertJob", "convert", "plan_convert"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"rocketcompat.spark.jobs.{name} is now in rocketcompat.spark.jobs.to_shards",
        DeprecationWarning,
        stacklevel=2,
    )
    from rocketcompat.spark.jobs import to_shards

    return getattr(to_shards, name)
