"""The parts of an open RocketMQ store, for tests that look behind its public calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.dispatch.protocols import Receiver
from rocketcompat.index.index_service import IndexService
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.shards.follower import TubeLayout
from rocketcompat.store.opening import Opened
from rocketcompat.store.parts import Parts, appended_for
from rocketcompat.store.reader import StoreReader
from tubestore.clock import Clock
from tubestore.core.vfs import Vfs


def parts_of(store: StoreReader) -> Parts:
    """What a store is made of; a structure is None when it is switched off."""
    return store._parts


def opened_of(store: StoreReader) -> Opened:
    """What opening to write made."""
    found = store._opened_to_write()
    assert found is not None
    return found


def log_of(store: StoreReader) -> CommitLog:
    return parts_of(store).commit_log


def dispatcher_of(store: StoreReader) -> ReputMessageService:
    return opened_of(store).dispatcher


def queues_of(store: StoreReader) -> ConsumeQueueTable:
    found = parts_of(store).queues
    assert found is not None
    return found


def index_of(store: StoreReader) -> IndexService:
    found = parts_of(store).index
    assert found is not None
    return found


def shards_of(store: StoreReader) -> TubeLayout:
    found = parts_of(store).tube
    assert found is not None
    return found


def new_log(vfs: Vfs, directory: str, config: MessageStoreConfig, clock: Clock) -> CommitLog:
    """A log alone, as opening makes it; its caller loads it."""
    return CommitLog(vfs, directory, config, clock, appended_for(config))


def appended_of(log: CommitLog) -> Appended:
    return log._appended


def dispatcher_for(
    log: CommitLog, followers: Sequence[Receiver], clock: Clock, **given: Any
) -> ReputMessageService:
    """A dispatcher of a log alone."""
    return ReputMessageService(log, appended_of(log), followers, clock, **given)


def take_appended(log: CommitLog) -> None:
    """Take what puts left, as another dispatcher would."""
    with appended_of(log).lock:
        appended_of(log).take(log.max_offset)
