"""Tube records become the log records that they came from, byte for byte, and others messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rocketcompat.formats import MESSAGE_PREFIX
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.codec import decode_one
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.verify import sound_chain
from rocketcompat.shards.record import to_tube
from rocketcompat.shards.to_log import to_log
from tests.rocketcompat.shards.test_record import SCENARIOS, log_files
from tests.support.golden import ROCKET_VERSIONS
from tubestore.errors import InvalidMessage
from tubestore.record.attributes import encode_prefix
from tubestore.record.layouts import FLAG_HAS_ATTRIBUTES
from tubestore.record.records import RecordColumns as TubeColumns

CONFIG = MessageStoreConfig()


def joined(tube: TubeColumns) -> TubeColumns:
    """Put the parts of the payloads together, as they are read from a shard."""
    nothing = pa.scalar(b"", pa.large_binary())
    payloads = pc.binary_join_element_wise(*tube.payloads, nothing)
    return replace(tube, payloads=[payloads])


def without_place(record: bytes) -> bytes:
    at = MESSAGE_PREFIX.position("physical_offset")
    return record[:at] + bytes(8) + record[at + 8 :]


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_golden_record_comes_back_byte_for_byte(
    version: str, scenario: str, tmp_path: Path
) -> None:
    count = 0
    for data, base in log_files(version, scenario, tmp_path):
        starts = sound_chain(data, 0, base, len(data)).starts
        if not len(starts):
            continue
        log = RecordColumns(data, starts, base)
        sizes = log.column("total_size")
        for code, topic in enumerate(log.topic_names):
            rows = np.flatnonzero(log.topic_codes == code)
            found = to_log(topic, joined(to_tube(log, rows)), CONFIG).to_pylist()
            places = [(starts[row], starts[row] + sizes[row]) for row in rows]
            assert found == [without_place(data[low:high]) for low, high in places]
            count += len(found)
    assert count > 5


def tube_of(payloads: list[bytes], flags: list[int], **columns: Any) -> TubeColumns:
    count = len(payloads)
    zeros = np.zeros(count, np.int32)
    times = np.full(count, 1_700_000_000_000, np.int64)
    partitions = np.array(columns.get("partitions", range(count)), np.int32)
    return TubeColumns(
        partitions, zeros, times, zeros, times, np.array(flags, np.int32),
        [pa.array(payloads, pa.large_binary())],
    )  # fmt: skip


def test_a_message_that_never_was_in_a_log_gets_what_a_log_knows() -> None:
    text = encode_prefix("paid", 1_700_000_000_000, {"a": "b", "c": "d"})
    tube = tube_of([text + b"one", b"two", b""], [FLAG_HAS_ATTRIBUTES, 0, 0])
    one, two, three = (decode_one(raw) for raw in to_log("t", tube, CONFIG).to_pylist())
    assert (one.body, one.queue_id, one.store_timestamp) == (b"one", 0, 1_700_000_000_000)
    assert one.properties == {"TAGS": "paid", "a": "b", "c": "d"}
    assert (two.body, two.properties_text, two.queue_id) == (b"two", "", 1)
    assert (three.body, three.born_timestamp) == (b"", 1_700_000_000_000)


def test_what_no_log_can_hold_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="longer than their message"):
        to_log("t", tube_of([b"\0\0\1\0x"], [FLAG_HAS_ATTRIBUTES]), CONFIG)
    with pytest.raises(InvalidMessage, match="no queue can have"):
        to_log("t", tube_of([b"x"], [0], partitions=[-1]), CONFIG)


def test_records_of_a_log_and_others_keep_their_order(tmp_path: Path) -> None:
    data, base = log_files("4.9.8", "odd", tmp_path)[0]
    starts = sound_chain(data, 0, base, len(data)).starts
    log = RecordColumns(data, starts, base)
    code = int(np.bincount(log.topic_codes).argmax())
    rows = np.flatnonzero(log.topic_codes == code)
    own = joined(to_tube(log, rows))
    foreign = tube_of([b"foreign"] * len(rows), [0] * len(rows), partitions=[7] * len(rows))
    order = np.arange(2 * len(rows)).reshape(2, -1).T.reshape(-1)  # one of each in turn
    names = ("partition_ids", "key_codes", "received_times", "report_addresses", "msg_ids", "flags")
    columns = [np.concatenate([getattr(own, n), getattr(foreign, n)])[order] for n in names]
    payloads = pa.concat_arrays([*own.payloads, *foreign.payloads]).take(pa.array(order))
    found = to_log("t", TubeColumns(*columns, [payloads]), CONFIG).to_pylist()
    assert [decode_one(raw).body for raw in found[1::2]] == [b"foreign"] * len(rows)
    bodies = log.bodies().take(pa.array(rows)).to_pylist()
    assert [decode_one(raw).body for raw in found[0::2]] == bodies
