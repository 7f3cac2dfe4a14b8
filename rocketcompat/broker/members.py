"""The members of consumer groups: their heartbeats, and the queues that they have locked.

`ConsumerTable` is RocketMQ's `ConsumerManager`: which clients a group has, and what they subscribe
to. A client that sends no heartbeat for 120 s leaves. `QueueLocks` is `RebalanceLockManager`: one
client at a time has a queue; a lock that was not renewed for 60 s is free.

Both are in memory, as in RocketMQ: after a restart the clients' next heartbeats and locks fill
them. Times are ms by the broker's clock. All calls are thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from rocketcompat.broker.allocation import MessageQueue
from rocketcompat.broker.pulling import Subscription
from tubestore.clock import Clock

MessageModel = Literal["CLUSTERING", "BROADCASTING"]
EXPIRED_MS = 120_000
LOCK_LIVES_MS = 60_000


@dataclass(slots=True)
class _Client:
    """A client of a group, and what to call when the group's members change."""

    seen_ms: int
    notify: Callable[[], None] | None


@dataclass(slots=True)
class ConsumerGroup:
    """The clients of a group, what they subscribe to, and how they consume."""

    model: MessageModel
    clients: dict[str, _Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Take a heartbeat's subscriptions; returns True if topics came or went.

        Of two subscriptions to a topic the one with the higher version counts.
        """
        given = {subscription.topic: subscription for subscription in wanted}
        changed = given.keys() != self.subscriptions.keys()
        for topic, subscription in given.items():
            old = self.subscriptions.get(topic)
            if old is not None and old.version >= subscription.version:
                given[topic] = old
        self.subscriptions = given
        return changed


class ConsumerTable:
    """The consumer groups that have clients (`ConsumerManager`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[str, ConsumerGroup] = {}

    def heartbeat(
        self, group: str, client_id: str, subscriptions: Iterable[Subscription],
        model: MessageModel = "CLUSTERING", notify: Callable[[], None] | None = None,
    ) -> bool:  # fmt: skip
        """Take note that a client is alive; returns True if the group has changed.

        Every member is notified of a change, the new one too.
        """
        with self._lock:
            found = self._groups.setdefault(group, ConsumerGroup(model))
            found.model = model
            is_new = client_id not in found.clients
            found.clients[client_id] = _Client(self._clock.now_ms(), notify)
            changed = found.subscribe(subscriptions) or is_new
            calls = self._calls(found) if changed else []
        self._notify(calls)
        return changed

    def leave(self, group: str, client_id: str) -> None:
        """Remove a client; the others are notified."""
        with self._lock:
            calls = self._remove(group, {client_id})
        self._notify(calls)

    def expire(self) -> None:
        """Remove clients without a heartbeat for 120 s; the others are notified."""
        calls = []
        with self._lock:
            oldest = self._clock.now_ms() - EXPIRED_MS
            for group, found in list(self._groups.items()):
                gone = {key for key, client in found.clients.items() if client.seen_ms < oldest}
                calls += self._remove(group, gone)
        self._notify(calls)

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a group's clients (`GET_CONSUMER_LIST_BY_GROUP`); [] without any."""
        with self._lock:
            found = self._groups.get(group)
            return list(found.clients) if found is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what the clients of a group want of a topic; None if they want nothing."""
        with self._lock:
            found = self._groups.get(group)
            return found.subscriptions.get(topic) if found is not None else None

    def model(self, group: str) -> MessageModel | None:
        """Return how a group consumes; None without clients."""
        with self._lock:
            found = self._groups.get(group)
            return found.model if found is not None else None

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with subscriptions to a topic, sorted."""
        with self._lock:
            return sorted(name for name, g in self._groups.items() if topic in g.subscriptions)

    def _remove(self, group: str, client_ids: set[str]) -> list[Callable[[], None]]:
        """Remove clients; returns what is to be called without the lock."""
        found = self._groups.get(group)
        gone = client_ids & found.clients.keys() if found is not None else set()
        if found is None or not gone:
            return []
        for client_id in gone:
            del found.clients[client_id]
        if not found.clients:
            del self._groups[group]
        return self._calls(found)

    @staticmethod
    def _calls(group: ConsumerGroup) -> list[Callable[[], None]]:
        return [client.notify for client in group.clients.values() if client.notify is not None]

    @staticmethod
    def _notify(calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            call()


class QueueLocks:
    """Which client has a queue (`RebalanceLockManager`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: (group, queue) -> the client, and when it locked the queue last.
        self._held: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, or renew the locks; returns those that the client has now."""
        now, got = self._clock.now_ms(), set()
        with self._lock:
            for queue in queues:
                holder, locked_ms = self._held.get((group, queue), (client_id, now))
                if holder == client_id or now - locked_ms > LOCK_LIVES_MS:
                    self._held[group, queue] = (client_id, now)
                    got.add(queue)
        return got

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """True if no other client has locked a queue since this client did."""
        with self._lock:
            return self._held.get((group, queue), ("", 0))[0] == client_id

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give queues back; nothing for those that another client has."""
        with self._lock:
            for queue in queues:
                if self._held.get((group, queue), ("", 0))[0] == client_id:
                    del self._held[group, queue]
