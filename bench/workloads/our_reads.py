"""Reads that only this store has: many partitions at once, views, filters, offsets by time.

Each is measured beside the plainer call that it replaces, on the same store.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import numpy as np
import pyarrow as pa

import tubestore
from bench.layouts.layout import TopicSharded, fresh
from bench.workloads.cases import Case, Measure, Runner, by_turns, clock
from bench.workloads.payload import SEED
from tubestore.record.layouts import key_code_of

LEAN = ["offset", "body"]
TOGETHER = 100
#: One message in so many passes the filter.
RARE = 100
SEALED_BYTES = 32 << 20


def each(*, sealed: bool = False, zero_copy: bool = False) -> Callable[[Case], Any]:
    """Offsets and bodies, a call for each partition; copied or shown where they are.

    `sealed`: of a store of many small files, of which only the last is written to.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        topic = _sealed(case) if sealed else _opened(case)
        turn = by_turns(range(case.partitions))

        def run(messages: int) -> Measure:
            count = calls = 0
            with clock() as times:
                while count < messages:
                    partition, position, more = next(turn), 0, True
                    while more and count < messages:
                        page = topic.read(
                            partition,
                            position,
                            limit=case.limit,
                            max_bytes=None,
                            columns=LEAN,
                            zero_copy=zero_copy,
                        )
                        position, more = page.next_offset, page.truncated
                        count += len(page)
                        calls += 1
            return Measure.of(count, calls, times)

        yield run

    return start


@contextmanager
def together(case: Case) -> Iterator[Runner]:
    """The same for a hundred partitions a call; a call counts as a hundred."""
    topic = _opened(case)
    turn = by_turns(range(case.partitions))

    def run(messages: int) -> Measure:
        count = calls = 0
        with clock() as times:
            while count < messages:
                wanted = dict.fromkeys(islice(turn, min(TOGETHER, case.partitions)), 0)
                pages = topic.read_many(wanted, limit=case.limit, max_bytes=None, columns=LEAN)
                count += len(pages)
                calls += len(wanted)
        return Measure.of(count, calls, times)

    yield run


def _opened(case: Case) -> Any:
    layout = case.opened(TopicSharded)
    assert isinstance(layout, TopicSharded)
    return layout.first_topic


def _filled(case: Case, **settings: Any) -> Any:
    """Return a topic of a new store: messages have a time each, and a rare filter item."""
    store = tubestore.open(fresh(case.place / "own"), **settings)
    topic = store.create_topic("own", partitions=case.partitions)
    items = pa.array(["rare" if n % RARE == 0 else "common" for n in range(case.batch)])
    done = 0
    for table in cycle(case.tables()):
        added = table.drop_columns(["topic"])
        if not settings:
            times = pa.array(np.arange(done, done + case.batch))
            added = added.append_column("filter_item", items)
            added = added.append_column("received_time_ms", times)
        topic.append_batch(added)
        done += case.batch
        if done >= case.messages:
            break
    case.stack.callback(store.close)
    return topic


def _filtered(case: Case) -> Any:
    """Return the store that all contestants share that filter."""
    if case.own is None:
        case.own = _filled(case)
    return case.own


def _sealed(case: Case) -> Any:
    """Return the store that all contestants share that show or copy bodies of sealed files."""
    if case.own is None:
        case.own = _filled(case, segment_size_bytes=SEALED_BYTES)
    return case.own


def filtering(*, by_index: bool) -> Callable[[Case], Any]:
    """Find the messages with the rare item, by key code or by reading everything.

    The measure counts the messages that are searched, not those that are found.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        topic = _filtered(case)
        columns = ["offset", "key_code", "body"]

        def run(messages: int) -> Measure:
            found = 0
            with clock() as times:
                if by_index:
                    with topic.scan(columns=columns, filter_items=["rare"]) as reader:
                        found = sum(batch.num_rows for batch in reader)
                else:
                    with topic.scan(columns=columns) as reader:
                        code = key_code_of("rare")
                        for batch in reader:
                            codes = batch.column("key_code").to_numpy()
                            found += batch.filter(pa.array(codes == code)).num_rows
            assert found * RARE >= case.messages
            return Measure.of(case.messages, 1, times)

        yield run

    return start


@contextmanager
def offsets_at(case: Case) -> Iterator[Runner]:
    """The offset of a random time in a random partition, one call each."""
    topic = _filtered(case)
    moments = random.Random(SEED)

    def run(messages: int) -> Measure:
        calls = max(1, messages // 100)
        asked = [
            (moments.randrange(case.partitions), moments.randrange(case.messages))
            for _ in range(calls)
        ]
        with clock() as times:
            for partition, moment in asked:
                topic.offset_at(partition, moment)
        return Measure.of(calls, calls, times)

    yield run
