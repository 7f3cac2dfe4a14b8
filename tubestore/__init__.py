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

import logging
import os
from typing import TYPE_CHECKING, Any, Literal

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
)

if TYPE_CHECKING:
    from tubestore.clock import Clock
    from tubestore.core.vfs import Vfs
    from tubestore.groups.admin import GroupDescription
    from tubestore.groups.consumer import Consumer
    from tubestore.messages import Ack, BatchAck, Message, Page, PageSet, Polled, Removed
    from tubestore.options import StoreOptions, TopicOptions
    from tubestore.reading.tubemq_reads import GetMessageResult
    from tubestore.store.leases import Lease
    from tubestore.store.manager import MessageStoreManager
    from tubestore.store.retention import SegmentRow
    from tubestore.store.topic import Topic

old_paths.keep("tubestore", old_paths.ENGINE)

__version__ = "0.1.0"


def open(
    root: str | os.PathLike[str],
    mode: Literal["w", "r"] = "w",
    *,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
    **settings: Any,
) -> MessageStoreManager:
    """Open a store for writing (made if it is missing) or, with mode "r", for reading.

    One writer at a time (StoreLocked). Readers come and go at any time and never change a byte.
    Close the store, or use it in a `with` block.

    - `settings`: the fields of `tubestore.StoreOptions`, such as `durability="fsync"`.
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
    from tubestore.options import StoreOptions
    from tubestore.store.manager import MessageStoreManager

    try:
        options = StoreOptions(**settings)
    except TypeError as error:
        raise TypeError(str(error).replace("StoreOptions.__init__()", "tubestore.open()")) from None
    return MessageStoreManager(
        root, mode, options=options, vfs=vfs, clock=clock, background=background
    )


__getattr__ = lazily(
    __name__,
    {
        "Ack": "messages",
        "BatchAck": "messages",
        "Consumer": "groups.consumer",
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
        "SegmentRow": "store.retention",
        "TopicOptions": "options",
    },
)

# A program that configures no logging gets no lines on its standard error from a library.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Ack",
    "BatchAck",
    "BatchError",
    "Consumer",
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
