"""Records in place of damaged ones make a log one chain again."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.decode import decode_record
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.record.verify import sound_chain
from rocketcompat.repair.log import (
    FILLER_LEAST,
    FILLER_TOPIC,
    PROPERTY_DAMAGED,
    LostMessage,
    Neighbour,
    mend,
)
from tests.rocketcompat.repair.test_rebuild import OPTIONS, ROOT, SMALL, messages, write
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.golden import units_of
from tests.support.rocket.inside import parts_of
from tests.support.rocket.store.mended import mend_store, mended
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs


def test_a_stand_in_keeps_number_properties_and_time(golden: GoldenFactory) -> None:
    real = golden("rocketmq", "4.9.8", "flip-body-middle")
    (region,) = [p for p in StoreDirectory(real.store).scan_log() if isinstance(p, Gap)]
    rows = mended(real)
    assert [row["action"] for row in rows if row["path"].startswith(str(real.store / "commitlog"))]
    found = {row["physical_offset"]: row for row in dump_log(StoreDirectory(real.store))}
    stand_in = found[region.start]
    # The queue of the message still has its unit; the record says the same number.
    assert stand_in["properties"].pop(PROPERTY_DAMAGED) == "1"
    assert stand_in["properties"]
    assert (stand_in["body"], stand_in["state"]) == (None, "lost")
    unit = next(
        (row for row in real.expected(type="message") if row["cqPhysicalOffset"] == region.start),
        None,
    )
    if unit is not None:
        assert stand_in["queue_offset"] == unit["index"]
        assert stand_in["store_timestamp"] == unit["storeTimestamp"]


def test_what_a_filler_took_the_place_of_is_lost_too() -> None:
    mended = mend(0, 1000, 2000, [], Neighbour())
    assert mended is not None
    states = {decode_record(raw, physical_offset=at)["state"] for at, raw in mended.patches}
    assert states == {"lost"}


@pytest.mark.parametrize("seed", range(200))
def test_any_region_is_filled_by_a_chain_of_sound_records(seed: int) -> None:
    source = random.Random(seed)
    file_end = 8192
    start = source.randrange(0, 4000)
    end = file_end if source.random() < 0.3 else start + source.randrange(FILLER_LEAST, 3000)
    lost = []
    position = start + source.randrange(0, 200)
    while position < end and source.random() < 0.8:
        lost.append(
            LostMessage("t" * source.randrange(1, 60), 1, len(lost), position,
                        properties={"KEYS": "k" * source.randrange(0, 200)})
        )  # fmt: skip
        position += source.randrange(40, 900)
    lost += [LostMessage("T", 2, n) for n in range(source.randrange(0, 3))]
    before = Neighbour(1_700_000_000_000, bytes((10, 0, 0, 1, 0, 0, 42, 159)))
    found = mend(start, end, file_end, lost, before)
    assert found is not None
    raw = bytearray(end - start)
    for at, data in found.patches:
        raw[at - start : at - start + len(data)] = data
    chain = sound_chain(bytes(raw), 0, start, file_end - start)
    assert chain.reason is None
    assert chain.blank or start + chain.end == end
    told = [*found.stand_ins, *found.without_room]
    key = lambda message: (message.topic, message.queue_id, message.queue_offset)  # noqa: E731
    assert sorted(map(key, told)) == sorted(map(key, lost))


def test_fillers_are_in_no_queue_and_no_index(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    places = write(memory_vfs, clock, 40)
    # A rolled back record stood in no queue either, so nothing but a filler can stand there.
    rolled_back = next(i for i, m in enumerate(messages(40)) if m.sys_flag == 0xC)
    place = places[rolled_back]
    memory_vfs.open(f"{ROOT}/commitlog/{0:020d}").pwrite(bytes(60), place)
    mend_store(memory_vfs, clock)
    rows = {
        row["physical_offset"]: row for row in dump_log(StoreDirectory(ROOT, OPTIONS, memory_vfs))
    }
    assert rows[place]["topic"] == FILLER_TOPIC
    with rocketcompat.open(
        ROOT, "w", SMALL, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        assert store.problems == []
        assert all(queue.topic != FILLER_TOPIC for queue in parts_of(store).queues or ())
        assert len(list(units_of(store))) == sum(m.sys_flag in (0, 8) for m in messages(40))
        found = pa.Table.from_batches(store.scan()).to_pylist()
        assert [row["physical_offset"] for row in found if row["state"] == "lost"] == [place]
