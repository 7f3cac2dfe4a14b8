"""A running stream holds what it has not read, by a lease."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


PROGRAM = """
import sys
from tubestore.core.vfs import OsVfs
from tubestore.spark.holding import StreamLease

lease = StreamLease(OsVfs(), sys.argv[1], print)
lease.hold({"logs-0": 28})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_terminated_gives_its_lease_up(root: Path) -> None:
    """Spark ends the process of a stream's source so, when the query ends."""
    command = [sys.executable, "-c", PROGRAM, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert len(read_leases(OsVfs(), str(root))) == 1
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert read_leases(OsVfs(), str(root)) == []


@pytest.fixture
def terminating() -> Iterator[None]:
    """Have no handler for the signal: streams of other tests may have left one."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("terminating")
def test_the_signal_is_as_it_was_when_the_lease_was_given_up(root: Path) -> None:
    lease = StreamLease(OsVfs(), str(root), print)
    lease.hold({"logs-0": 28})
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    lease.release()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.usefixtures("terminating")
def test_a_handler_of_the_process_stays(root: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lease = StreamLease(OsVfs(), str(root), print)
    lease.hold({"logs-0": 28})
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    lease.release()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_where_nothing_can_be_written_a_stream_goes_on_without_a_lease(tmp_path: Path) -> None:
    (tmp_path / ".tubestore").write_text("in the way")
    said: list[str] = []
    lease = StreamLease(OsVfs(), str(tmp_path), said.append)
    lease.hold({"logs-0": 28})
    lease.hold({"logs-0": 56})
    assert len(said) == 1
    assert "no lease can be held" in said[0]
