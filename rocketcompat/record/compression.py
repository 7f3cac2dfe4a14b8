"""Bodies that the producer compressed, unpacked for readers; the store never does.

A record's sysFlag contains how its body was packed: zlib, or since 5.0 LZ4 (frames) or ZSTD. Pure
functions; thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import SYS_FLAG_COMPRESSED
from rocketcompat.messages import UNPACKED_SIZE_MAX as UNPACKED_SIZE_MAX
from rocketcompat.messages import unpack_body as unpack_body

#: Unpacked bodies of about so many bytes are in memory together, or one that is larger.
UNPACKED_RUN_BYTES = 32 << 20


def unpack_bodies(
    bodies: pa.LargeBinaryArray, sys_flags: Any, run_bytes: int = UNPACKED_RUN_BYTES
) -> Iterator[tuple[slice, pa.LargeBinaryArray, Any]]:
    """Yield a column of bodies in runs: which rows, their bodies, and a mask of those that failed.

    The compressed ones are unpacked; what cannot be unpacked stays as it is. A run ends before its
    unpacked bodies take more than `run_bytes` together: memory does not grow with their number.
    """
    first, size = 0, 0
    unpacked: dict[int, bytes | None] = {}
    for row in np.flatnonzero(sys_flags & SYS_FLAG_COMPRESSED).tolist():
        text = unpack_body(bodies[row].as_py(), int(sys_flags[row]))
        if unpacked and size + len(text or b"") > run_bytes:
            yield _run(bodies, slice(first, row), unpacked)
            first, size = row, 0
            unpacked.clear()
        unpacked[row] = text
        size += len(text or b"")
    yield _run(bodies, slice(first, len(bodies)), unpacked)


def _run(
    bodies: pa.LargeBinaryArray, rows: slice, unpacked: dict[int, bytes | None]
) -> tuple[slice, pa.LargeBinaryArray, Any]:
    """Return a run: the stored bodies with the unpacked ones in their places."""
    stored = bodies[rows]
    failed = np.zeros(len(stored), bool)
    failed[[row - rows.start for row, text in unpacked.items() if text is None]] = True
    texts = {row - rows.start: text for row, text in unpacked.items() if text is not None}
    if not texts:
        return rows, stored, failed
    places = np.arange(len(stored))
    places[list(texts)] = len(stored) + np.arange(len(texts))
    joined = pa.concat_arrays([stored, pa.array(list(texts.values()), pa.large_binary())])
    return rows, joined.take(pa.array(places)), failed
