"""A running stream holds what it has not read, by a lease."""

from __future__ import annotations

from pathlib import Path

from tests.spark.streams import root as root
from tests.spark.streams import stream
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.spark.holding import TTL_MS, StreamLease
from tubestore.store.leases import read_leases


def test_a_stream_holds_what_it_has_not_read_until_it_ends(root: Path) -> None:
    batches = stream(root)
    at = batches.initial()
    end = batches.latest(at, 100)
    (lease,) = read_leases(OsVfs(), str(root))
    assert lease.offsets == at.shards
    batches.latest(end, 100)
    batches._lease.renew()  # type: ignore[union-attr]  # not due yet: nothing is written
    batches.close()
    assert read_leases(OsVfs(), str(root)) == []


def test_a_lease_is_renewed_with_where_the_stream_is(root: Path) -> None:
    clock = ManualClock()
    lease = StreamLease(OsVfs(), str(root), print, clock)
    lease.hold({"logs-0": 28})
    lease.hold({"logs-0": 56})
    clock.advance(TTL_MS // 2)
    lease.renew()
    (found,) = read_leases(OsVfs(), str(root))
    assert found.offsets == {"logs-0": 56}
    assert found.expires_ms == clock.now_ms() + TTL_MS
    lease.release()
    assert read_leases(OsVfs(), str(root)) == []


def test_where_nothing_can_be_written_a_stream_goes_on_without_a_lease(tmp_path: Path) -> None:
    (tmp_path / ".tubestore").write_text("in the way")
    said: list[str] = []
    lease = StreamLease(OsVfs(), str(tmp_path), said.append)
    lease.hold({"logs-0": 28})
    lease.hold({"logs-0": 56})
    assert len(said) == 1
    assert "no lease can be held" in said[0]
