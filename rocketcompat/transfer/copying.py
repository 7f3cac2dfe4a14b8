"""Messages of a topic put again into another topic, of the same store or of another one.

The source is read as it lies: it may be damaged, or its broker may be at work.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import STATE_OK
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.selection import Selection
from rocketcompat.reading.again import put_again
from rocketcompat.record.arrow import batch_of_records
from rocketcompat.store.default_message_store import DefaultMessageStore


class CopiedMessages(NamedTuple):
    """What a copy has put, and what it could not."""

    #: Messages that were put.
    messages: int
    #: Stand-ins of lost messages of the topic.
    left_out: int
    #: Regions of the log that cannot be read; which topics they had is not known.
    damaged_regions: int


def copied_of_none(source: StoreDirectory, wanted: Selection) -> CopiedMessages | None:
    """Return what a copy does if a log has no wanted message; None at the first that it has."""
    damaged = 0
    for piece in source.scan_log(wanted.start, wanted.end, since=wanted.begin):
        if isinstance(piece, Gap):
            damaged += piece.state not in ENDS
        elif len(wanted.of(piece)):
            return None
    return CopiedMessages(0, 0, damaged)


def copy_messages(
    source: StoreDirectory, wanted: Selection, store: DefaultMessageStore, topic: str
) -> CopiedMessages:
    """Put the wanted messages of a log into a topic of a store that is open for writing.

    Queue ids, properties, flags, and the time and host of the producer stay; queue offsets and
    store times are new. The order of the log stays. `wanted.end` bounds a log that is written
    meanwhile, also by this copy. It is not atomic: what was put before an error stays.
    """
    messages = left_out = damaged = 0
    other = None if topic == wanted.topic else topic
    for piece in source.scan_log(wanted.start, wanted.end, since=wanted.begin):
        if isinstance(piece, Gap):
            damaged += piece.state not in ENDS
            continue
        found = wanted.of(piece)
        if not len(found):
            continue
        batch = batch_of_records(found)
        sound = batch.filter(pc.equal(batch["state"], STATE_OK))
        left_out += batch.num_rows - sound.num_rows
        if sound.num_rows:
            store.put_columns(put_again(pa.Table.from_batches([sound]), other))
            messages += sound.num_rows
    return CopiedMessages(messages, left_out, damaged)
