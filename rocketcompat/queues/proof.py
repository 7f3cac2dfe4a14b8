"""Messages at the log's end that the units of queues prove although their records are damaged.

A unit is written when its record is whole in the page cache. So on the same boot a unit that points
to no sound record shows damage, and no torn end: the message keeps its place and its queue offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import BatchQueueTable, ConsumeQueueTable
from rocketcompat.queues.units import is_fill
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore


def proved_end(vfs: Vfs, root: str, config: MessageStoreConfig, start: int) -> int:
    """Return where the records end that units place at `start` and behind it without a gap.

    All are physical offsets; `start` if no unit points there. Queues that cannot be read prove
    nothing.
    """
    size, sizes = config.mapped_file_size_commit_log, sizes_from(vfs, root, config, start)
    end = start
    while end in sizes and end % size + sizes[end] <= size:
        end += sizes[end]
    return end


def sizes_from(vfs: Vfs, root: str, config: MessageStoreConfig, start: int) -> dict[int, int]:
    """Return the sizes of the records at or behind an offset, by the offsets in units."""
    tables: list[ConsumeQueueTable | BatchQueueTable] = [
        ConsumeQueueTable(
            vfs, f"{root}/{CONSUME_QUEUE_DIRECTORY}", config.consume_queue_file_size,
            writable=False, batch_topics=config.batch_topics,
        )
    ]  # fmt: skip
    if config.batch_topics:
        size = config.mapper_file_size_batch_consume_queue
        path = f"{root}/{BATCH_CONSUME_QUEUE_DIRECTORY}"
        tables.append(BatchQueueTable(vfs, path, size, config.batch_topics, writable=False))
    sizes: dict[int, int] = {}
    for table in tables:
        try:
            table.load()
            for queue in table:
                _take(sizes, queue.units_from(start), start)
        except (NotAStore, OSError):
            pass
        table.close()
    return sizes


def _take(sizes: dict[int, int], units: np.ndarray[Any, Any], start: int) -> None:
    offsets: Int64s = units["physical_offset"].astype(np.int64)
    kept = (offsets >= start) & (units["size"] > 0) & ~is_fill(units)
    sizes.update(zip(offsets[kept].tolist(), units["size"][kept].tolist(), strict=True))
