"""Staged pieces get their places in the log."""

from __future__ import annotations

from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging.writer import StagedLogWriter
from tests.support.rocket.inside import log_of
from tests.support.rocket.publishing import (
    CLOCK,
    CONFIG,
    ROOT,
    batch,
    bodies,
    findings,
    numbered,
    opened,
    pulled,
    stage,
)
from tests.support.rocket.publishing import vfs as vfs
from tubestore.testing import MemoryVfs


def test_a_small_job_goes_on_in_the_live_file_and_a_large_one_begins_files(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.put_message(Message("orders", b"first"))
        small = store.publish("small", stage(vfs, "small", batch(numbered("s", 3))))
        large = store.publish("large", stage(vfs, "large", batch(numbered("l", 60))))
        put = store.put_message(Message("orders", b"last"))
        assert 0 < small.start < small.end < 4096
        assert small.rows == 3
        assert not small.replayed
        assert large.start == 4096
        assert large.rows == 60
        assert large.number == 2
        assert put.physical_offset == large.end
        wanted = [[b"first"], [], []]
        for name, count in (("s", 3), ("l", 60)):
            for n, body in enumerate(numbered(name, count)):
                wanted[n % 3].append(body)
        wanted[0].append(b"last")
        store.wait_dispatched(put.physical_offset)
        assert pulled(store) == wanted
        assert [m.body for m in store.query_message("orders", "k59")] == [numbered("l", 60)[59]]
    assert findings(vfs) == []
    with opened(vfs) as store:
        assert pulled(store) == wanted
        assert store.recovered.clean


def test_pieces_follow_each_other_in_the_order_given(vfs: MemoryVfs) -> None:
    parts = [stage(vfs, "j", batch(numbered(name, 25)), attempt=name) for name in "abc"]
    with opened(vfs) as store:
        store.publish("j", [piece for staged in reversed(parts) for piece in staged])
        store.flush()
        assert findings(vfs) == []
    assert bodies(vfs) == numbered("c", 25) + numbered("b", 25) + numbered("a", 25)


def test_records_are_taken_as_they_are_but_for_their_offsets(vfs: MemoryVfs) -> None:
    config = CONFIG.changed(
        enabled_append_prop_crc=True, compat="5.3.3", force_verify_prop_crc=True
    )
    other = MemoryVfs(CLOCK)
    with opened(other, config=config) as store:
        store.put_message(Message("away", b"of another topic"))
        store.put_columns(batch(numbered("x", 50), born_host=["[::1]:7"] * 50))
        store.put_message(Message("orders", b"half", sys_flag=4))
    with (
        opened(vfs, config=config) as store,
        StagedLogWriter(ROOT, "copy", "0", config=config, vfs=vfs) as writer,
    ):
        store.put_message(Message("orders", b"before"))
        for piece in StoreDirectory(ROOT, {}, other).scan_log():
            assert isinstance(piece, RecordColumns)
            writer.write_records(piece)
        CLOCK.advance(1000)
        store.publish("copy", writer.finish())
        store.flush()
        records = list(store.get_message("orders", 0, 0))
        assert store.max_offset_in_queue("orders", 0) == 18
    assert [m.queue_offset for m in records] == list(range(len(records)))
    assert records[1].store_timestamp < CLOCK.now_ms()
    assert records[1].born_host == "[::1]:7"
    assert bodies(vfs) == [b"before", *bodies(other)]
    with opened(vfs, config=config) as store:  # checksums of whole records are asked for
        assert log_of(store).gaps == ()
    assert findings(vfs) == []
