"""What is done once in each of the processes that Spark runs Python in.

Nothing here imports Spark.
"""

from __future__ import annotations

import gc
import os

#: Set by Spark for workers that do one task after the other.
_REUSED = "SPARK_REUSE_WORKER"
#: True if it was done here: to ask the collector what is frozen means to count it, 5 ms a task.
_settled = False


def settle() -> None:
    """Keep the collector from going through all that is imported, after every task.

    PySpark has it collect everything when a task or a question has ended, and the worker's next
    one waits for that: 40 to 120 ms with Arrow and NumPy in memory, more than many tasks take.
    What exists at the first call is not examined any more; what tasks leave is collected as
    before.
    """
    global _settled
    if not _settled and os.environ.get(_REUSED):
        gc.freeze()
        _settled = True
