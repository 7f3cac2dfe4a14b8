"""Which queues a consumer has: computed from the members of its group, and kept up with them.

RocketMQ's `RebalanceImpl`: queues and client ids are sorted, a strategy gives each client its
share, and the share is compared with the table of process queues. A queue that another client has
now is dropped: its messages are neither consumed nor committed any more. A new queue begins where
its group has committed, or by the consumer's policy (`pull_from_where`).

Difference from RocketMQ: every member that shares queues locks them at the broker, not only one
that consumes in order. So a queue has one member at a time, and a member that was stopped for too
long commits nothing for a queue that another member has taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from rocketcompat.broker.allocation import MessageQueue, Strategy, allocated, average
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.members import MessageModel
from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.broker.pulling import Subscription
from rocketcompat.broker.tables import checked_topic
from rocketcompat.record.properties import RETRY_PREFIX
from tubestore.core.doors import logger
from tubestore.errors import UnknownTopic

_log = logger(__name__)

#: Where a group begins that has committed nothing: behind the last message, at the first one, or at
#: the first one stored at a time.
FromWhere = Literal[
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"
]
REBALANCE_SECONDS, HEARTBEAT_SECONDS, LOCK_SECONDS = 20.0, 30.0, 20.0
#: When another member still has a queue of the share, the next try comes so soon.
RETRY_SECONDS = 1.0


def pull_from_where(
    policy: FromWhere, topic: str, committed: int | None, max_offset: Callable[[], int],
    offset_by_time: Callable[[], int],
) -> int:  # fmt: skip
    """Return where a new queue begins (`computePullFromWhere`).

    >>> pull_from_where("CONSUME_FROM_LAST_OFFSET", "orders", None, lambda: 9, lambda: 4)
    9
    """
    if committed is not None:
        return committed
    is_retry = topic.startswith(RETRY_PREFIX)
    if policy == "CONSUME_FROM_LAST_OFFSET":
        return 0 if is_retry else max_offset()
    if policy == "CONSUME_FROM_TIMESTAMP":
        return max_offset() if is_retry else offset_by_time()
    return 0


class Rebalance:
    """A consumer's queues, and how they come and go.

    `added` is called with each new queue, its process queue and its first offset. `removed` is
    called with a queue that was dropped; False keeps it in the table for another try.
    """

    def __init__(
        self, broker: Broker, group: str, client_id: str, *,
        added: Callable[[MessageQueue, ProcessQueue, int], None],
        removed: Callable[[MessageQueue, ProcessQueue], bool],
        model: MessageModel = "CLUSTERING", strategy: Strategy = average,
        from_where: FromWhere = "CONSUME_FROM_LAST_OFFSET", from_time_ms: int = 0,
    ) -> None:  # fmt: skip
        self._broker, self.group, self.client_id = broker, group, client_id
        self._added, self._removed = added, removed
        self.model, self._strategy = model, strategy
        self._from_where, self._from_time_ms = from_where, from_time_ms
        #: What the consumer wants, by topic.
        self.subscriptions: dict[str, Subscription] = {}
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        #: True if another member still has a queue of this one's share.
        self.waits = False

    @property
    def offsets_group(self) -> str:
        """The name under which offsets are kept: of its own for each client that broadcasts."""
        if self.model == "CLUSTERING":
            return self.group
        return f"{self.group}%BROADCAST%{self.client_id.replace('@', '%')}"

    def subscribe(self, topic: str, wanted: str | Subscription) -> None:
        """Want a topic: messages of an expression's tags ("*" for all), or of a subscription."""
        given = wanted if isinstance(wanted, Subscription) else Subscription(topic, wanted)
        self.subscriptions[checked_topic(topic)] = given

    def rebalance(self) -> bool:
        """Compute the share anew, and drop and add queues; returns True if any changed."""
        changed = self.waits = False
        for topic in list(self.subscriptions):
            share = self._share(topic)
            if share is not None:
                changed |= self._update(topic, set(share))
        for queue in [q for q in self.queues if q.topic not in self.subscriptions]:
            changed |= self.remove(queue)
        return changed

    def _share(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues that the client shall have of a topic; None if it is not known."""
        try:
            queues = self._broker.queues(topic)
        except UnknownTopic:
            return None
        if self.model == "BROADCASTING":
            return queues
        clients = self._broker.consumers.client_ids(self.group)
        if not queues or not clients:
            return [] if clients else None
        return allocated(self._strategy, self.group, self.client_id, queues, clients)

    def _update(self, topic: str, share: set[MessageQueue]) -> bool:
        changed = False
        for queue, held in list(self.queues.items()):
            if queue.topic == topic and (queue not in share or held.is_idle or held.dropped):
                changed |= self.remove(queue)
        wanted = sorted(queue for queue in share if queue not in self.queues)
        if self.model == "CLUSTERING":
            got = self._broker.locks.lock(self.group, self.client_id, wanted)
            self.waits = self.waits or len(got) < len(wanted)
            wanted = [queue for queue in wanted if queue in got]
        for queue in wanted:
            held = ProcessQueue(self._broker.clock)
            start = self.start_of(queue)
            self.queues[queue] = held
            self._added(queue, held, start)
            changed = True
        return changed

    def remove(self, queue: MessageQueue) -> bool:
        """Drop a queue; returns True if it is out of the table."""
        held = self.queues[queue]
        held.drop()
        if not self._removed(queue, held):
            return False
        del self.queues[queue]
        self.unlock([queue])
        return True

    def start_of(self, queue: MessageQueue) -> int:
        """Return where a queue that is new begins."""
        store, topic, number = self._broker.store, queue.topic, queue.queue_id
        clustering = self.model == "CLUSTERING"
        known = self._broker.query_offset if clustering else self._broker.offsets.find
        return pull_from_where(
            self._from_where,
            topic,
            known(self.offsets_group, topic, number),
            lambda: store.max_offset_in_queue(topic, number),
            lambda: store.offset_in_queue_by_time(topic, number, self._from_time_ms),
        )

    def commit(
        self, queue: MessageQueue, held: ProcessQueue, offset: int, *, forward: bool = True
    ) -> bool:
        """Commit an offset, never a lower one if `forward`; False if the queue is another's."""
        if offset < 0:
            return False
        with held.committing():
            if held.dropped or not self._owns(queue):
                return False
            known = self._broker.offsets.find(self.offsets_group, queue.topic, queue.queue_id)
            if not forward or known is None or offset > known:
                self._broker.commit_offset(self.offsets_group, queue.topic, queue.queue_id, offset)
            return True

    def _owns(self, queue: MessageQueue) -> bool:
        if self.model == "BROADCASTING":
            return True
        return self._broker.locks.holds(self.group, self.client_id, queue)

    def lock_all(self) -> None:
        """Renew the broker's locks; a queue that another client has taken is dropped."""
        if self.model == "BROADCASTING":
            return
        got = self._broker.locks.lock(self.group, self.client_id, list(self.queues))
        now = self._broker.clock.now_ms()
        for queue, held in list(self.queues.items()):
            if queue in got:
                held.locked_ms = now
            else:
                held.drop()

    def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give the broker's locks back."""
        self._broker.locks.unlock(self.group, self.client_id, queues)

    def heartbeat(self, notify: Callable[[], None]) -> None:
        """Report to the broker that the client is alive, and what it wants."""
        self._broker.heartbeat(
            self.group, self.client_id, list(self.subscriptions.values()), model=self.model,
            notify=notify,
        )  # fmt: skip

    def leave(self) -> None:
        """Drop all queues and leave the group; the other members share the queues."""
        for held in self.queues.values():
            held.drop()
        self.unlock(list(self.queues))
        self.queues.clear()
        self._broker.consumers.leave(self.group, self.client_id)
