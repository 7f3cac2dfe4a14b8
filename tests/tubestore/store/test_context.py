"""What all parts of an open store share: ids that rise."""

from __future__ import annotations

from tubestore.clock import ManualClock
from tubestore.store.manager import MessageStoreManager, engine_of


def test_message_ids_rise_and_go_on_after_the_clock_stepped_back(
    store: MessageStoreManager, clock: ManualClock
) -> None:
    counter = engine_of(store).context.ids
    ids = [counter.next()]
    clock.advance(-60_000)
    ids += [counter.next(), *counter.next_many(3).tolist(), counter.next()]
    clock.advance(120_000)
    ids.append(counter.next())
    assert ids == sorted(set(ids))
