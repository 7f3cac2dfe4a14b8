"""What readers hold for a while."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tubestore.clock import ManualClock
from tubestore.errors import OffsetOutOfRange, StoreClosed
from tubestore.store.leases import Lease, forget_expired, live_leases, read_leases
from tubestore.testing import MemoryVfs

ROOT = "/store"
PLACE = f"{ROOT}/.tubestore/leases"
MINUTE = 60_000


def take(vfs: MemoryVfs, clock: ManualClock, offsets: Any = None, **how: Any) -> Lease:
    settings: dict[str, Any] = {
        "holder": "a test",
        "ttl_ms": MINUTE,
        "check": lambda offsets: None,
        **how,
    }
    return Lease(vfs, ROOT, offsets or {"t-0": 280}, clock=clock, **settings)


def test_a_lease_reports_what_it_needs_until_it_is_released(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with take(memory_vfs, clock, {"t-0": 280, "u-3": 0}) as lease:
        (record,) = live_leases(memory_vfs, ROOT, clock.now_ms())
        assert (record.holder, record.expires_ms) == ("a test", clock.now_ms() + MINUTE)
        assert [record.holds(key) for key in ("t-0", "u-3", "t-1")] == [280, 0, None]
        assert "holder='a test'" in repr(lease)
    assert read_leases(memory_vfs, ROOT) == []
    lease.release()
    with pytest.raises(StoreClosed, match="was released"):
        lease.renew()


def test_a_lease_that_is_not_renewed_expires(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    lease = take(memory_vfs, clock)
    clock.advance(MINUTE - 1)
    lease.renew({"t-0": 560})
    clock.advance(MINUTE - 1)
    (record,) = live_leases(memory_vfs, ROOT, clock.now_ms())
    assert record.holds("t-0") == 560
    clock.advance(1)
    assert live_leases(memory_vfs, ROOT, clock.now_ms()) == []
    assert len(read_leases(memory_vfs, ROOT)) == 1
    clock.advance(20 * MINUTE)
    forget_expired(memory_vfs, ROOT, clock.now_ms())
    assert read_leases(memory_vfs, ROOT) == []


def test_a_holder_that_slept_gets_a_file_that_is_not_about_to_be_deleted(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    lease = take(memory_vfs, clock)
    (old,) = memory_vfs.tree()
    clock.advance(MINUTE + 6 * MINUTE)
    lease.renew()
    assert len(memory_vfs.tree()) == 2
    memory_vfs.remove(old)  # whoever read it before deletes it now
    (record,) = live_leases(memory_vfs, ROOT, clock.now_ms())
    assert record.expires_ms == clock.now_ms() + MINUTE


def test_a_lease_on_what_is_gone_is_none(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    first = 0

    def check(offsets: Mapping[str, int]) -> None:
        assert len(live_leases(memory_vfs, ROOT, clock.now_ms())) == 1, "it is written first"
        if offsets["t-0"] < first:
            raise OffsetOutOfRange(offsets["t-0"], first, 1000)

    lease = take(memory_vfs, clock, check=check)
    first = 560
    with pytest.raises(OffsetOutOfRange):
        lease.renew()
    assert read_leases(memory_vfs, ROOT) == []
    with pytest.raises(OffsetOutOfRange):
        take(memory_vfs, clock, check=check)
    assert read_leases(memory_vfs, ROOT) == []


GOOD = {"version": 1, "features": [], "holder": "h", "expires_ms": 5, "offsets": {"t-0": 1}}
NONSENSE = [b"", b"{", b"[]", b"null", b'{"version": 1}']
NONSENSE += [json.dumps(GOOD | change).encode() for change in (
    {"version": 2}, {"features": ["x"]}, {"offsets": 5}, {"offsets": {"t-0": "x"}},
    {"expires_ms": None},
)]  # fmt: skip


@pytest.mark.parametrize("content", NONSENSE, ids=lambda c: ascii(c)[1:])
def test_a_file_that_cannot_be_read_holds_everything_for_a_day(
    memory_vfs: MemoryVfs, clock: ManualClock, content: bytes
) -> None:
    memory_vfs.make_directories(PLACE)
    memory_vfs.replace_file(f"{PLACE}/x.json", content)
    (record,) = live_leases(memory_vfs, ROOT, clock.now_ms())
    assert (record.holds("t-0"), record.holds("anything-7")) == (0, 0)
    assert "x.json" in record.holder
    clock.advance(24 * 60 * MINUTE)
    assert live_leases(memory_vfs, ROOT, clock.now_ms()) == []


def test_other_files_are_no_leases(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    memory_vfs.make_directories(f"{PLACE}/d.json")
    memory_vfs.replace_file(f"{PLACE}/half.json.tmp.keep", b"")
    assert read_leases(memory_vfs, ROOT) == []
    assert read_leases(memory_vfs, "/nowhere") == []
