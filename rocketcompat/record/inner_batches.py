"""Records that hold many messages: 5.x's inner batches, in topics whose queues are for them.

Such a topic has the attribute `queue.type` = BatchCQ in `config/topics.json`; a store without one
says it in the option `batch_topics`, and a topic that has such queues stays one. A producer's batch
is one record there (sysFlag 0x80); INNER_NUM says how many messages it holds, INNER_BASE the
queue offset of the first, and the next record's is that much further on (spec §1.11).
"""

from __future__ import annotations

import os

import numpy as np

from rocketcompat.files.broker_config import BrokerConfig
from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, SYS_FLAG_INNER_BATCH
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.prepare import INNER_COUNT_MAX
from rocketcompat.record.properties import PROPERTY_INNER_BASE, PROPERTY_INNER_COUNT
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord

_QUEUE_TYPE, _BATCH_TYPE = "queue.type", "BatchCQ"


def with_batch_topics(config: MessageStoreConfig, vfs: Vfs, root: str) -> MessageStoreConfig:
    """Return the options with the topics of batches that the directory tells of added."""
    found = set(config.batch_topics)
    base = os.path.join(root, BATCH_CONSUME_QUEUE_DIRECTORY)
    found |= {name for name, is_directory, _ in vfs.entries(base) if is_directory}
    try:
        topics = BrokerConfig(vfs, root).topics()
    except (CorruptRecord, TypeError):  # `check` tells of it
        topics = {}
    found |= {name for name, topic in topics.items()
              if (topic.attributes or {}).get(_QUEUE_TYPE) == _BATCH_TYPE}  # fmt: skip
    if found == config.batch_topics:
        return config
    return config.changed(batch_topics=frozenset(found))


def message_counts(records: RecordColumns) -> Int64s | None:
    """Return how many messages each record holds; None if all are plain ones.

    Only of a topic of batches is it true: elsewhere a record is one message, whatever it says.
    """
    if not (records.column("sys_flag") & SYS_FLAG_INNER_BATCH).any():
        return None
    counts = np.ones(len(records), np.int64)
    # As the real dispatcher: only where both are there.
    based = {row for row, _ in _numbers(records, PROPERTY_INNER_BASE)}
    for row, number in _numbers(records, PROPERTY_INNER_COUNT):
        if row in based and 0 < number <= INNER_COUNT_MAX:
            counts[row] = number
    return counts


def _numbers(records: RecordColumns, name: str) -> list[tuple[int, int]]:
    """Return row and value of a property that is a number."""
    rows, starts, ends = records.property_values(name)
    raw = records.property_bytes
    places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    texts = [(row, raw[start:end].tobytes()) for row, start, end in places]
    return [(row, int(text)) for row, text in texts if text.isdigit()]
