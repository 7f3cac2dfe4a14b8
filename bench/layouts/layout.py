"""A layout: a way to keep the messages of many partitions on a disk. Bring your own.

Everything that is compared here by doing the same work is a `Layout`: this store, the rivals in
`peers.py`, and any other (`python -m bench --layout package.module:Class`).
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

import tubestore
from bench.layouts.capabilities import Unavailable as Unavailable
from bench.layouts.capabilities import checked

Durability = Literal["memory", "page_cache", "fsync"]
#: Where a reader goes on; None: from the first message. Each layout has its own kind.
Position = object


@runtime_checkable
class Layout(Protocol):
    """Messages of `topics` × `partitions`, numbered from 0, in one directory.

    Made by `Class(root, topics=…, partitions=…, durability=…)`, which creates what is missing and
    opens what is there. A layout has the methods of the capabilities that it declares
    (`capabilities.py`), and `close`; these are the usual ones.
    """

    name: str
    capabilities: frozenset[str]

    def append(self, topic: int, partition: int, body: bytes) -> None:
        """Take one message; it has reached the durability when this returns."""

    def append_batch(self, batch: pa.Table) -> None:
        """Take rows of `topic` (int32), `partition` (int32) and `body` (binary), likewise."""

    def flush(self) -> None:
        """Bring what was taken to the files (page cache) and make it readable."""

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        """Copy out up to `limit` messages: (rows, where to go on, None at the end).

        `lean`: position and body are enough; otherwise all fields of a message.
        """

    def bodies(self, rows: Any) -> list[bytes]:
        """Return the bodies in what `read` returned, before the next call."""

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        """Copy out every message, some at a time; `verify` checks checksums, if there are any."""

    def close(self) -> None:
        """Give everything back."""


_EVERYTHING = frozenset(
    ("append", "batch", "read", "scan", "threads", "fsync", "sizes", "reopen", "recover")
)


class TopicSharded:
    """This store: a shard a topic, its partitions interleaved in one data and one index stream."""

    name = "tubestore"
    capabilities = _EVERYTHING | {"follow", "by_time", "filter", "retain"}
    settings = "the defaults; segments of 1 GiB"
    segment_bytes = 1 << 30

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        self._store = tubestore.open(
            root, durability=durability, segment_size_bytes=self.segment_bytes
        )
        names = [f"topic{n:05d}" for n in range(topics)]
        options = tubestore.TopicOptions(partitions=partitions)
        self._topics = self._store.ensure_topics(dict.fromkeys(names, options))
        self._names = pa.array(names)

    @property
    def first_topic(self) -> tubestore.Topic:
        """The topic itself, for calls that no other layout has."""
        return self._topics[0]

    def append(self, topic: int, partition: int, body: bytes) -> None:
        self._topics[topic].append(body, partition=partition)

    def append_batch(self, batch: pa.Table) -> None:
        topics = batch.column("topic")
        batch = _renamed(batch, {"time_ms": "received_time_ms", "item": "filter_item"})
        if len(self._topics) == 1:
            self._topics[0].append_batch(batch.drop_columns(["topic"]))
            return
        codes = topics.combine_chunks()
        named = pa.DictionaryArray.from_arrays(codes, self._names)
        self._store.append_batch(batch.set_column(0, "topic", named))

    def flush(self) -> None:
        self._store.flush()

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        page = self._topics[topic].read(
            partition,
            "earliest" if position is None else position,  # type: ignore[arg-type]
            limit=limit,
            max_bytes=None,
            columns=["offset", "body"] if lean else None,
        )
        return page, page.next_offset if page.truncated else None

    def follow(
        self, topic: int, partition: int, position: Position | None, limit: int
    ) -> tuple[Sized, Position]:
        start: Any = "earliest" if position is None else position
        columns = ["offset", "body"]
        page = self._topics[topic].read(
            partition, start, limit=limit, max_bytes=None, columns=columns
        )
        return page, page.next_offset

    def offset_at(self, topic: int, partition: int, time_ms: int) -> Position:
        return self._topics[topic].offset_at(partition, time_ms)

    def filtered(self, topic: int, item: str) -> Iterator[Sized]:
        columns = ["offset", "body"]
        with self._topics[topic].scan(columns=columns, filter_items=[item]) as reader:
            yield from reader

    def retain(self, keep_bytes: int) -> None:
        for topic in self._topics:
            topic.retain(max_bytes=keep_bytes // len(self._topics))

    def bodies(self, rows: Any) -> list[bytes]:
        return rows.table.column("body").to_pylist()  # type: ignore[no-any-return]

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        for topic in self._topics:
            yield from topic.scan(verify=verify)

    def close(self) -> None:
        self._store.close()


class SingleLog:
    """This store in RocketMQ's layout: a CommitLog with queues and index; no tube shards.

    A message is readable when it was dispatched; `flush` waits for that.
    """

    name = "rocketcompat"
    capabilities = _EVERYTHING | {"follow", "by_key"}
    settings = "queues and index, pages of up to 1 GiB"
    structures = frozenset({"consume_queue", "index"})
    #: False: the log's files are written through maps, as RocketMQ does.
    write_without_mmap = True
    #: True: puts are acknowledged from memory and written in few large pieces, as RocketMQ's pool.
    transient_store_pool_enable = False

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        try:
            import rocketcompat
            from rocketcompat.messages import Message
            from rocketcompat.options import MessageStoreConfig

            self._message: Any = Message
            config = MessageStoreConfig(
                layouts=self.structures,
                write_without_mmap=self.write_without_mmap,
                transient_store_pool_enable=self.transient_store_pool_enable,
                flush_disk_type="SYNC_FLUSH" if durability == "fsync" else "ASYNC_FLUSH",
                max_transfer_count_on_message_in_memory=1 << 20,
                max_transfer_bytes_on_message_in_memory=1 << 30,
                max_transfer_count_on_message_in_disk=1 << 20,
                max_transfer_bytes_on_message_in_disk=1 << 30,
            )
            self._store: Any = rocketcompat.open(root, mode="w", config=config)
        except (ImportError, AttributeError) as error:
            raise Unavailable(f"rocketcompat: {error}") from error
        self._names = [f"topic{n:05d}" for n in range(topics)]
        self._column = pa.array(self._names)

    @property
    def store(self) -> Any:
        """The store itself, for calls that only it has."""
        return self._store

    def append(self, topic: int, partition: int, body: bytes) -> None:
        self._store.put_message(self._message(self._names[topic], body, queue_id=partition))

    def append_batch(self, batch: pa.Table) -> None:
        codes = batch.column("topic").combine_chunks()
        columns = {
            "topic": pa.DictionaryArray.from_arrays(codes, self._column),
            "queue_id": batch.column("partition"),
            "body": batch.column("body"),
        }
        if "key" in batch.column_names:
            columns["keys"] = batch.column("key")
        self._store.put_columns(pa.table(columns))

    def flush(self) -> None:
        end = self._store.max_physical_offset
        if not self._store.wait_dispatched(end - 1, timeout=600.0):
            raise TimeoutError("the dispatcher is behind")

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        page = self._store.read_queue(self._names[topic], partition, position or 0, limit)
        more = page.next_offset < self._store.max_offset_in_queue(self._names[topic], partition)
        return page.batch, page.next_offset if more else None

    def follow(
        self, topic: int, partition: int, position: Position | None, limit: int
    ) -> tuple[Sized, Position]:
        page = self._store.read_queue(self._names[topic], partition, position or 0, limit)
        return page.batch, page.next_offset

    def find_key(self, topic: int, key: str) -> list[bytes]:
        found = self._store.query_message(self._names[topic], key)
        return [record.body for record in found]

    def bodies(self, rows: Any) -> list[bytes]:
        return rows.column("body").to_pylist()  # type: ignore[no-any-return]

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        return self._store.scan(verify=verify)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._store.close()


class MappedSingleLog(SingleLog):
    """The same with the log's files written through maps: `--layout bench.layouts:MappedSingleLog`.

    Refused as the default by D10; here to be measured beside it.
    """

    name = "rocketcompat, mapped"
    settings = "the log's files written through maps"
    write_without_mmap = False


class PooledSingleLog(MappedSingleLog):
    """The same through maps and RocketMQ's transient pool: acknowledged from memory."""

    name = "rocketcompat, pool"
    settings = "written through maps from the transient pool; acknowledged from memory"
    transient_store_pool_enable = True

    def flush(self) -> None:
        self._store.flush()
        super().flush()


class SingleLogAndShards(SingleLog):
    """The same with everything on: queues, index, and the shards of `tubestore`."""

    name = "rocketcompat + tube"
    settings = "queues, index and shards"
    structures = frozenset({"consume_queue", "index", "tube"})


def load_layout(name: str) -> type[Layout]:
    """Import `package.module:Class`, and check what it declares."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute or "Layout")
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"--layout {name}: {error}") from error
    try:
        return checked(found)  # type: ignore[no-any-return]
    except Unavailable as error:
        raise Unavailable(f"--layout {name}: {error}") from error


def fresh(root: Path) -> Path:
    """Return the directory, empty."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return root


def _renamed(batch: pa.Table, names: dict[str, str]) -> pa.Table:
    """Return the columns that a store takes, under its own names; a key is left out."""
    if batch.num_columns == 3:
        return batch
    kept = batch.select([name for name in batch.column_names if name != "key"])
    return kept.rename_columns([names.get(name, name) for name in kept.column_names])


def columns_of(batch: pa.Table) -> tuple[Sequence[int], Sequence[int], list[bytes]]:
    """Return topics, partitions and bodies as Python lists, for a rival without columns."""
    topics, partitions, bodies = (
        batch.column(n).to_pylist() for n in ("topic", "partition", "body")
    )
    return topics, partitions, bodies
