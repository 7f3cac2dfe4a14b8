"""The engine against a plain list: whatever is done in whatever order, both say the same.

The model is a list of messages a partition. Everything is tiny, so that a few dozen steps roll,
seal, swap and flush; a kill loses what was only in memory, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tubestore
from tubestore.clock import ManualClock
from tubestore.errors import StoreClosed
from tubestore.offline.check import check
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.testing import MemoryVfs

pytestmark = pytest.mark.gate

PARTITIONS = (0, 1, 10_000, 10_001)
partitions = st.sampled_from(PARTITIONS)
items = st.sampled_from([None, "red", "green"])
bodies = st.binary(min_size=1, max_size=40)
levels = st.sampled_from(["memory", "page_cache", "fsync"])
rows = st.lists(st.tuples(partitions, bodies, items), min_size=1, max_size=12)


@dataclass(frozen=True)
class Sent:
    """A message as it was appended."""

    partition: int
    offset: int
    body: bytes
    item: str | None
    time: int


class StoreAgainstLists(RuleBasedStateMachine):
    """One topic of two shards."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.vfs = MemoryVfs(self.clock)
        self.journal = self.vfs.record()
        self.sent: dict[int, list[Sent]] = {partition: [] for partition in PARTITIONS}
        #: How many of a partition's messages have left memory.
        self.safe = dict.fromkeys(PARTITIONS, 0)

    @initialize()
    def open(self) -> None:
        self.store = tubestore.open(
            "/s", vfs=self.vfs, clock=self.clock, background=False,
            segment_size_bytes=700, index_segment_size_bytes=6 * INDEX_ENTRY.size,
            mem_store_messages=7, mem_store_size_bytes=4096,
        )  # fmt: skip
        self.topic = self.store.create_topic("t", partitions=2, stores=2, exist_ok=True)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    # -- what may happen -----------------------------------------------------------------------

    @rule(partition=partitions, body=bodies, item=items, level=levels)
    def append(self, partition: int, body: bytes, item: str | None, level: str) -> None:
        ack = self.topic.append(body, partition=partition, filter_item=item, durability=level)
        self._took(partition, ack.offset, body, item)
        self._acknowledged({partition // 10_000}, level)

    @rule(batch=rows, level=levels)
    def append_batch(self, batch: list[tuple[int, bytes, str | None]], level: str) -> None:
        numbers, texts, tags = zip(*batch, strict=True)
        table = pa.table(
            {
                "partition": pa.array(numbers, pa.int32()),
                "body": pa.array(texts, pa.large_binary()),
                "filter_item": pa.array(tags, pa.string()),
            }
        )
        acks = self.topic.append_batch(table, durability=level)
        for (partition, body, item), ack in zip(batch, acks, strict=True):
            assert ack.partition == partition
            self._took(partition, ack.offset, body, item)
        self._acknowledged({partition // 10_000 for partition in numbers}, level)

    @rule(ms=st.integers(0, 5000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def flush(self) -> None:
        self.topic.flush()
        self._acknowledged({0, 1}, "page_cache")

    @rule()
    def sync(self) -> None:
        self.topic.sync()
        self._acknowledged({0, 1}, "fsync")

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self._acknowledged({0, 1}, "fsync")
        self.open()

    @rule()
    def kill_and_open(self) -> None:
        """What a full buffer wrote by itself may be there, too; never less than was promised."""
        disk = self.journal.end()
        self.store.close()
        self.vfs = MemoryVfs(self.clock, disk)
        self.journal = self.vfs.record()
        self.open()
        for partition, sent in self.sent.items():
            found = sum(1 for _ in self.topic.messages(partition))
            assert self.safe[partition] <= found <= len(sent)
            del sent[found:]
            self.safe[partition] = found

    @rule(most=st.integers(200, 3000))
    def retain(self, most: int) -> None:
        """The oldest go, of whole files; what is left has no gap and keeps its offsets."""
        self.topic.retain(max_bytes=most)
        for partition, sent in self.sent.items():
            left = self._read(partition)
            gone = len(sent) - len(left)
            assert left == sent[gone:]
            self.sent[partition] = left
            self.safe[partition] = max(0, self.safe[partition] - gone)

    @rule()
    def retain_under_a_lease(self) -> None:
        with self.store.lease():
            assert self.topic.retain(max_bytes=0) == []

    @rule()
    def everything_grows_too_old(self) -> None:
        self.topic.flush()
        self.clock.advance(10)
        self.topic.retain(max_age="1ms")
        self.sent = {partition: [] for partition in PARTITIONS}
        self.safe = dict.fromkeys(PARTITIONS, 0)

    @rule()
    def empty_the_trash(self) -> None:
        self.store.empty_trash(grace=0)

    @rule()
    def delete_and_create(self) -> None:
        before = self.topic
        self.store.delete_topic("t")
        self.topic = self.store.create_topic("t", partitions=2, stores=2)
        with pytest.raises(StoreClosed):
            before.append(b"x", partition=0)
        self.sent = {partition: [] for partition in PARTITIONS}
        self.safe = dict.fromkeys(PARTITIONS, 0)

    # -- what has to hold ----------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def every_partition_reads_as_it_was_appended(self) -> None:
        for partition, sent in self.sent.items():
            assert self._read(partition) == sent

    @rule(
        partition=partitions,
        place=st.integers(0, 30),
        limit=st.integers(1, 9),
        wanted=st.lists(st.sampled_from(["red", "green", "blue"]), max_size=2),
    )
    def read_from_a_place(self, partition: int, place: int, limit: int, wanted: list[str]) -> None:
        sent = self.sent[partition]
        # Below the first kept message there is nothing to read from.
        start = sent[min(place, len(sent) - 1)].offset if sent else self._end(partition)
        expected = [
            message
            for message in sent
            if message.offset >= start and (not wanted or message.item in wanted)
        ]
        page = self.topic.read(partition, start, limit=limit, filter_items=wanted or None)
        assert [message.offset for message in page] == [m.offset for m in expected[:limit]]
        rest = self.topic.read(partition, page.next_offset, limit=1000, filter_items=wanted or None)
        assert [message.offset for message in rest] == [m.offset for m in expected[limit:]]

    @rule()
    def scan(self) -> None:
        table = self.topic.scan(columns=["partition", "offset", "body"], verify=True).read_all()
        expected = sorted(
            (partition // 10_000, message.offset, partition, message.body)
            for partition, sent in self.sent.items()
            for message in sent
        )
        found = [
            (row["partition"] // 10_000, row["offset"], row["partition"], row["body"])
            for row in table.to_pylist()
        ]
        assert found == expected

    @rule()
    def check_finds_nothing(self) -> None:
        self.store.flush()
        self._acknowledged({0, 1}, "page_cache")
        assert list(check("/s", vfs=self.vfs)) == []

    # -- how -----------------------------------------------------------------------------------

    def _took(self, partition: int, offset: int, body: bytes, item: str | None) -> None:
        sent = self.sent[partition]
        assert not sent or offset > sent[-1].offset
        sent.append(Sent(partition, offset, body, item, self.clock.now_ms()))

    def _acknowledged(self, shards: set[int], level: str) -> None:
        """A level covers everything that was appended to the shard before."""
        if level != "memory":
            for partition in PARTITIONS:
                if partition // 10_000 in shards:
                    self.safe[partition] = len(self.sent[partition])

    def _end(self, partition: int) -> int:
        return self.topic.read(partition, "latest", limit=0).end_offset

    def _read(self, partition: int) -> list[Sent]:
        return [
            Sent(partition, m.offset, m.body, m.filter_item, m.received_time_ms)
            for m in self.topic.messages(partition)
        ]


TestStoreAgainstLists = StoreAgainstLists.TestCase
TestStoreAgainstLists.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, print_blob=True
)
