"""RocketMQ message stores without a broker: its files, byte for byte, under its own names.

with rocketcompat.open("/store", mode="w") as store:
    store.put_message(rocketcompat.Message("orders", b"...", tags="paid", keys=["o-1"]))
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from rocketcompat.old_paths import LAYER
from tubestore.core.doors import lazily
from tubestore.core.old_paths import keep
from tubestore.errors import unknown_name

if TYPE_CHECKING:
    from rocketcompat.messages import (
        BatchItem,
        GetMessageStatus,
        Message,
        MessageBatch,
        MessageRecord,
        PutBatchResult,
        PutResult,
        PutStatus,
    )
    from rocketcompat.options import MessageStoreConfig
    from rocketcompat.store.default_message_store import DefaultMessageStore
    from rocketcompat.store.reader import StoreReader
    from tubestore.clock import Clock
    from tubestore.core.vfs import Vfs


keep("rocketcompat", LAYER)

__all__ = [
    "BatchItem",
    "DefaultMessageStore",
    "GetMessageStatus",
    "Message",
    "MessageBatch",
    "MessageRecord",
    "MessageStoreConfig",
    "PutBatchResult",
    "PutResult",
    "PutStatus",
    "StoreReader",
    "open",
]

__getattr__ = lazily(
    __name__,
    {
        "BatchItem": "messages",
        "DefaultMessageStore": "store.default_message_store",
        "GetMessageStatus": "messages",
        "Message": "messages",
        "MessageBatch": "messages",
        "MessageRecord": "messages",
        "MessageStoreConfig": "options",
        "PutBatchResult": "messages",
        "PutResult": "messages",
        "PutStatus": "messages",
        "StoreReader": "store.reader",
    },
)


@overload
def open(
    root: str | os.PathLike[str],
    mode: Literal["w"],
    config: MessageStoreConfig | None = None,
    *,
    layouts: Iterable[str] | None = None,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> DefaultMessageStore: ...
@overload
def open(
    root: str | os.PathLike[str],
    mode: Literal["r"] = "r",
    config: MessageStoreConfig | None = None,
    *,
    layouts: Iterable[str] | None = None,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> StoreReader: ...
@overload
def open(
    root: str | os.PathLike[str],
    mode: Literal["r", "w"],
    config: MessageStoreConfig | None = None,
    *,
    layouts: Iterable[str] | None = None,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> StoreReader: ...
def open(
    root: str | os.PathLike[str],
    mode: Literal["r", "w"] = "r",
    config: MessageStoreConfig | None = None,
    *,
    layouts: Iterable[str] | None = None,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
    **unknown: Any,
) -> StoreReader:
    """Open a store: mode "r" changes nothing, "w" creates what is missing and recovers.

    Returns a `StoreReader`, with mode "w" a `DefaultMessageStore`, which writes as well.

    - `config`: RocketMQ's options, a `MessageStoreConfig`. File sizes and the geometry of the index
      that it leaves at RocketMQ's defaults are taken from the files of the store, if it has some.
    - `layouts`: the structures that are kept ("consume_queue", "index", "tube"), instead of the
      configuration's. By default queues and index, and the shards of a store that has them: "tube"
      is a second copy of all bodies. It is for mode "w"; `tubestore.open(root + "/tube")` reads it.
    - Without `background` no threads run: `wait_dispatched`, `flush` and `close` do what is
      pending.
    - `vfs` and `clock`: stand-ins for the disk and the time, for tests (`tubestore.testing`).

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root:
    ...     with rocketcompat.open(root, mode="w") as store:
    ...         put = store.put_message(rocketcompat.Message("orders", b"hello", tags="paid"))
    ...     with rocketcompat.open(root) as reader:
    ...         [m.body for m in reader.get_message("orders", 0, put.queue_offset)]
    [b'hello']

    Raises NotAStore, StoreLocked, CorruptRecord, InvalidMessage (an argument or
    option); StorageError or DiskFull where the operating system refuses a call.
    """
    from rocketcompat.store.default_message_store import open_store

    if unknown:
        raise TypeError(f"rocketcompat.open: {_unknown_argument(next(iter(unknown)))}")
    return open_store(
        root, mode, config, layouts=layouts, vfs=vfs, clock=clock, background=background
    )


def _unknown_argument(name: str) -> str:
    """Return a sentence for an argument that `open` does not have: it may be an option."""
    from rocketcompat.options import MessageStoreConfig, camel_to_snake

    options = MessageStoreConfig.__dataclass_fields__
    option = camel_to_snake(name)
    if option in options:
        return f"{name!r} is an option: config=rocketcompat.MessageStoreConfig({option}=...)"
    return unknown_name(name, ("mode", "config", "layouts", "vfs", "clock", "background", *options))
