"""Writers of a log that no lock keeps apart: a job of the one that was overtaken is whole, or not
there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from rocketcompat import Message
from rocketcompat.staging.pieces import StagedPiece
from tests.support.faults import StoppedVfs, UnlockedVfs, end_of_publishing
from tests.support.rocket.publishing import (
    CLOCK,
    batch,
    bodies,
    counted,
    findings,
    numbered,
    opened,
    pulled,
    stage,
)
from tubestore.disks.writer_lock import Overtaken
from tubestore.errors import StoreFailed


def made(vfs: UnlockedVfs) -> None:
    with opened(vfs) as store:
        store.put_message(Message("orders", b"first"))


def publisher_of(vfs: UnlockedVfs, pieces: list[StagedPiece]) -> Callable[[], None]:
    """What another process does: opens the store, publishes a job, puts a message, closes."""

    def work() -> None:
        with opened(vfs) as other:
            other.publish("others", pieces)
            other.put_message(Message("orders", b"last"))

    return work


def test_a_writer_that_was_overtaken_publishes_nothing_and_says_by_whom() -> None:
    vfs = UnlockedVfs(CLOCK)
    made(vfs)
    ours, others = (stage(vfs, name, batch(numbered(name, 5))) for name in ("ours", "others"))
    store = opened(vfs)
    publisher_of(vfs, others)()
    with pytest.raises(Overtaken, match="generation 2 has ended with generation 3"):
        store.publish("ours", ours)
    with pytest.raises(StoreFailed):
        store.close()
    assert bodies(vfs) == [b"first", *numbered("others", 5), b"last"]
    with opened(vfs) as again:
        assert again.publish("ours", ours).rows == 5
    assert findings(vfs) == []


@pytest.mark.gate
@pytest.mark.parametrize("count", [5, 60])
def test_a_publisher_that_is_stopped_anywhere_while_another_publishes_harms_neither_job(
    count: int,
) -> None:
    ends, calls = set(), 0
    while True:
        vfs = UnlockedVfs(CLOCK)
        made(vfs)
        ours = stage(vfs, "ours", batch(numbered("ours", count)))
        others = stage(vfs, "others", batch(numbered("them", count)))
        stopped = StoppedVfs(vfs)
        store = opened(stopped)
        stopped.stop(calls, publisher_of(vfs, others))
        end = end_of_publishing(store, "ours", ours)
        at = f"stopped at call {calls}: {stopped.stopped}"
        stopped.stop(-1, lambda: None)
        with contextlib.suppress(StoreFailed):
            store.close()
        if not stopped.stopped:
            break
        with opened(vfs) as again:
            found = bodies(vfs)
            whole = numbered("ours", 1)[0] in found
            wanted = [b"first", b"last", *numbered("them", count)]
            wanted += numbered("ours", count) if whole else []
            assert sorted(found) == sorted(wanted), at
            assert whole or end != "published", at
            assert not (whole and end == "Overtaken"), at
            has_all = counted(pulled(again)) == len(wanted)
            assert again.publish("ours", ours).replayed == whole, at
        # Who is stopped while it writes queues and index may spoil those; `repair` builds them.
        is_settling = end == "published" and ("consumequeue" in at or "/index/" in at)
        assert has_all or is_settling, at
        assert findings(vfs) == [] or is_settling, at
        assert has_all or findings(vfs), at
        ends.add((end, whole))
        calls += 1
    assert calls > 20
    assert {("Overtaken", False), ("StoreFailed", True), ("published", True)} <= ends
