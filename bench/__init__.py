"""The laboratory: the same work done by this store, by its rivals, and at the machine's limit.

`python -m bench` runs it; `compare` is the same as a library. README.md has the questions and how
to read the answers.
"""

from __future__ import annotations

from typing import Any


def compare(layouts: Any, workloads: Any, sizes: Any = ({},), **options: Any) -> Any:
    """Measure layouts beside each other: an Arrow table with a row a cell (`comparison.py`)."""
    from bench.comparison import compare as measure

    return measure(layouts, workloads, sizes, **options)
