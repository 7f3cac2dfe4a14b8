"""Check the settings of an existing session: what could be better there, and what it costs.

Nothing here imports Spark.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

from tubestore.spark.kit.options import size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKETS = "spark.python.unix.domain.socket.enabled"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
PIPELINED = "spark.python.udf.pipelined.enabled"
_BATCH_BYTES_MAX = 4 << 20


class Advice(NamedTuple):
    """A setting that is not as it should be: the value that it should have, and why."""

    name: str
    wanted: str
    cost: str


ADVICE = (
    Advice(SOCKETS, "true", "rows travel between Spark and Python 25 % slower without"),
    Advice(PIPELINED, "false", "Spark 4.3.0 fails with it when the sockets are Unix sockets"),
)
_advised: set[str] = set()


def settings_to_change(spark: SparkSession) -> list[Advice]:
    """Return the settings of a session that cost something as they are."""
    found = []
    for advice in ADVICE:
        value = str(spark.conf.get(advice.name, "false")).lower()
        if value != advice.wanted:
            found.append(advice)
    if _bytes(str(spark.conf.get(BATCH_BYTES, "64m"))) > _BATCH_BYTES_MAX:
        cost = "writing is 30 % slower with large batches"
        found.append(Advice(BATCH_BYTES, "1m", cost))
    return found


def _bytes(text: str) -> int:
    try:
        return size(text)
    except ValueError:
        return 0


def check_settings(spark: SparkSession) -> None:
    """Warn, once a process, of settings that cost something."""
    advice = [a for a in settings_to_change(spark) if a.name not in _advised]
    _advised.update(a.name for a in advice)
    if advice:
        lines = "; ".join(f"{a.name}={a.wanted} ({a.cost})" for a in advice)
        warnings.warn(f"this Spark session could do better with {lines}", stacklevel=3)
