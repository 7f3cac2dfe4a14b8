"""An embedded message store for many partitions, in TubeMQ's file format.

>>> import tempfile, tubestore
>>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
...     logs = store.create_topic("logs", partitions=1000)
...     ack = logs.append(b"hello", key="user-7", filter_item="greeting")
...     page = logs.read(ack.partition)
...     [m.body for m in page]
[b'hello']

Names are loaded when they are first used: importing the package is quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, Never

from tubestore.core import old_paths
from tubestore.core.doors import lazily
from tubestore.errors import (
    BatchError,
    CorruptRecord,
    DataLoss,
    DiskFull,
    InvalidMessage,
    InvalidName,
    InvalidOption,
    JobTaken,
    MemberFenced,
    MessageTooLarge,
    NotAStore,
    OffsetOutOfRange,
    OutputIncomplete,
    ReadOnlyStore,
    StorageError,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TopicExists,
    TubeStoreError,
    UnknownTopic,
    unknown_name,
)

if TYPE_CHECKING:
    from tubestore.clock import Clock
    from tubestore.core.vfs import Vfs
    from tubestore.groups.admin import GroupDescription
    from tubestore.groups.consumer import Consumer
    from tubestore.messages import Ack, BatchAck, Copied, Message, Page, PageSet, Polled, Removed
    from tubestore.options import Durability, OnDamage, StoreOptions, TopicOptions
    from tubestore.reading.tubemq_reads import GetMessageResult
    from tubestore.shard.compaction import MergedFiles
    from tubestore.store.leases import Lease
    from tubestore.store.manager import MessageStoreManager
    from tubestore.store.retention import SegmentRow
    from tubestore.store.topic import Topic
    from tubestore.values import Age, Size

old_paths.keep("tubestore", old_paths.ENGINE)

__version__ = "0.1.0"


def open(
    root: str | os.PathLike[str],
    mode: Literal["w", "r"] = "w",
    *,
    durability: Durability = "page_cache",
    on_damage: OnDamage = "isolate",
    segment_size_bytes: Size = 1 << 30,
    index_segment_size_bytes: Size = 19_600_000,
    mem_store_size_bytes: Size = 1_572_864,
    mem_store_messages: int = 5120,
    mem_flush_interval_ms: Age = 20_000,
    sync_after_messages: int = 1000,
    sync_after_bytes: Size = 0,
    sync_after_ms: Age = 10_000,
    memory_bound_bytes: Size = 256 << 20,
    journal_shards_min: int = 8,
    journal_size_bytes: Size = 128 << 20,
    journal_flush_ms: Age = 5000,
    ring_journal: bool = True,
    ring_size_bytes: Size = 128 << 20,
    flush_workers: int = 2,
    append_timeout_ms: Age = 5000,
    payload_size_max: Size = 1_058_816,
    key_attribute: str | None = None,
    retention_interval_ms: Age = 180_000,
    trash_grace_ms: Age = 120_000,
    staging_grace_ms: Age = 86_400_000,
    compact_files_min: int = 8,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
    **unknown: Never,
) -> MessageStoreManager:
    """Open a store for writing (made if it is missing) or, with mode "r", for reading.

    One writer at a time (StoreLocked). Readers come and go at any time and never change a byte.
    Close the store, or use it in a `with` block.

    - `durability`: what an append survives when it returns: "memory", "page_cache" (a kill),
      "fsync" (a power cut, too); a call may choose another one.
    - `key_attribute`: the name of an attribute that keeps the keys; the format keeps none.
    - `on_damage`: "isolate" shows damaged messages as rows with a state, "raise" raises
      CorruptRecord.
    - the other settings: see `tubestore.StoreOptions`. Sizes are numbers or texts ("1GB"), times
      milliseconds, texts ("10s") or timedeltas.
    - `background=False` runs no threads: flushes happen in the caller.
    - `vfs` and `clock`: stand-ins for the disk and the time, for tests (`tubestore.testing`).

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root:
    ...     with tubestore.open(root, durability="fsync") as store:
    ...         ack = store.create_topic("logs").append(b"hello")
    ...     with tubestore.open(root, mode="r") as reader:
    ...         [message.body for message in reader["logs"].read(ack.partition)]
    [b'hello']

    Raises StoreLocked, NotAStore; StorageError or DiskFull where the operating system refuses a
    call; ValueError or TypeError, which name it, for an argument.
    """
    given = dict(locals())
    from tubestore.options import StoreOptions
    from tubestore.store.manager import MessageStoreManager

    names = StoreOptions.__dataclass_fields__
    if unknown:
        raise TypeError(f"tubestore.open: {unknown_name(next(iter(unknown)), names)}")
    return MessageStoreManager(
        root,
        mode,
        options=StoreOptions(**{name: given[name] for name in names}),
        vfs=vfs,
        clock=clock,
        background=background,
    )


__getattr__ = lazily(
    __name__,
    {
        "Ack": "messages",
        "BatchAck": "messages",
        "Consumer": "groups.consumer",
        "Copied": "messages",
        "GroupDescription": "groups.admin",
        "GetMessageResult": "reading.tubemq_reads",
        "Message": "messages",
        "MessageStoreManager": "store.manager",
        "Page": "messages",
        "PageSet": "messages",
        "Polled": "messages",
        "Removed": "messages",
        "StoreOptions": "options",
        "Topic": "store.topic",
        "Lease": "store.leases",
        "MergedFiles": "shard.compaction",
        "SegmentRow": "store.retention",
        "TopicOptions": "options",
    },
)


__all__ = [
    "Ack",
    "BatchAck",
    "BatchError",
    "Consumer",
    "Copied",
    "CorruptRecord",
    "DataLoss",
    "DiskFull",
    "GetMessageResult",
    "GroupDescription",
    "InvalidMessage",
    "InvalidName",
    "InvalidOption",
    "JobTaken",
    "Lease",
    "MemberFenced",
    "MergedFiles",
    "Message",
    "MessageStoreManager",
    "MessageTooLarge",
    "NotAStore",
    "OffsetOutOfRange",
    "OutputIncomplete",
    "Page",
    "PageSet",
    "Polled",
    "ReadOnlyStore",
    "Removed",
    "SegmentRow",
    "StorageError",
    "StoreBusy",
    "StoreClosed",
    "StoreFailed",
    "StoreLocked",
    "StoreOptions",
    "Topic",
    "TopicExists",
    "TopicOptions",
    "TubeStoreError",
    "UnknownTopic",
    "open",
]
