"""The parts of an open RocketMQ store, for tests that look behind its public calls."""

from __future__ import annotations

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.index.index_service import IndexService
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.shards.follower import TubeLayout
from rocketcompat.store.opening import Opened
from rocketcompat.store.parts import Parts
from rocketcompat.store.reader import StoreReader


def parts_of(store: StoreReader) -> Parts:
    """What a store is made of; a structure is None when it is switched off."""
    return store._parts


def opened_of(store: StoreReader) -> Opened:
    """What opening to write made."""
    found = store._running()
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
