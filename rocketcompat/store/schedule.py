"""Delayed messages: put aside in SCHEDULE_TOPIC_XXXX, and delivered when they are due.

A delayed message is stored in the queue of its delay level, with its own topic and queue in two
properties. The queue's unit holds the time of delivery where others hold the tag's hash. The
service continues in each level's queue from `config/delayOffset.json`, and puts due messages into
their own topics, as 4.9.8's store and 5.3.3's broker do: hosts, times, flags and property string
are kept, and DELAY, REAL_TOPIC and REAL_QID stay in that string.

Delivery is at least once: after a crash the messages delivered since the offsets were written
(every `flush_delay_offset_interval` ms, and at a close) are delivered again.

Differences from RocketMQ:
- a unit that a recovery of 4.9.2 … 4.9.8 filled with the tag's hash (R3) is taken for due at the
  record's store time plus the delay of its level, not at once;
- a record that is damaged or has no topic for it is passed over, and is in `problems`.

Guards: `_lock` is held by the thread that delivers, and guards the offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.reads import lost_message, read_unit
from rocketcompat.files.broker_config import BrokerConfig
from rocketcompat.formats import STATE_OK
from rocketcompat.messages import Message, MessageRecord
from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.record.delays import delivered
from rocketcompat.record.properties import (
    SCHEDULE_TOPIC,
)
from rocketcompat.store.service_thread import ServiceThread
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import CorruptRecord, InvalidMessage, TubeStoreError

_log = logger(__name__)
#: The levels are checked as often as RocketMQ checks them.
_INTERVAL_SECONDS = 0.1
FIRST_SECONDS = 1.0
_UNITS_AT_ONCE = 64


class ScheduleMessageService(ServiceThread):
    """Delivers due messages; in a thread, or by calls of `deliver_due`."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueueTable, files: BrokerConfig, clock: Clock,
        put: Callable[[Message], Any],
    ) -> None:  # fmt: skip
        super().__init__("ScheduleMessageService")
        self._log, self._queues, self._files, self._clock = log, queues, files, clock
        self._put = put
        self._config = log.config
        self._lock = threading.Lock()
        self._offsets: dict[int, int] = {}
        #: While the offsets are not known nothing is delivered: it might all come a second time.
        self._blind = False
        try:
            self._offsets = files.delay_offsets()
        except (CorruptRecord, OSError) as error:
            self._blind = True
            self.problems.append(TubeStoreError(f"delayed messages are not delivered: {error}"))
        self._saved = dict(self._offsets)
        self._saved_at = clock.monotonic()

    @property
    def offsets(self) -> dict[int, int]:
        """The next unit to deliver by level."""
        with self._lock:
            return dict(self._offsets)

    def deliver_due(self) -> int:
        """Put every message that is due into its topic; returns how many.

        OSError and StoreBusy of the log pass through: the message is tried again next time.
        """
        with self._lock:
            levels = range(0 if self._blind else len(self._config.delay_levels_ms))
            return sum(self._deliver_level(level + 1) for level in levels)

    def persist(self) -> None:
        """Write the offsets, if they have moved; the messages below them are synced before."""
        with self._lock:
            if self._offsets != self._saved:
                self._log.flush()
                self._files.save_delay_offsets(self._offsets, self._clock.now_ms())
                self._saved = dict(self._offsets)

    def work(self) -> float:
        """Deliver what is due, and write the offsets now and then."""
        self.deliver_due()
        every = self._config.flush_delay_offset_interval / 1000
        if self._clock.monotonic() - self._saved_at >= every:
            self.persist()
            self._saved_at = self._clock.monotonic()
        return _INTERVAL_SECONDS

    def _deliver_level(self, level: int) -> int:
        queue = self._queues.of_kind(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        # A saved offset may be outside of the queue: before it, after a cleaning; behind it, when
        # the log lost its end (#1869).
        noted = self._offsets.get(level, 0)
        offset = min(max(noted, queue.min_offset), queue.max_offset)
        if offset != noted:
            self._offsets[level] = offset
        count = 0
        while (units := queue.units(offset, offset + _UNITS_AT_ONCE)).size:
            for unit in queue.resolved(units).tolist():
                if not self._is_due(queue, offset, level, *unit):
                    return count
                count += self._deliver(queue, offset, unit)
                offset += 1
                self._offsets[level] = offset
        return count

    def _is_due(
        self, queue: ConsumeQueue, offset: int, level: int, physical_offset: int, size: int,
        deliver_at: int,
    ) -> bool:  # fmt: skip
        """True if a unit is due; one too far in the future is due, too (a clock went back)."""
        delay = self._config.delay_levels_ms[level - 1]
        if deliver_at <= 1 << 32:  # a tag's hash, from a recovery of RocketMQ's (R3)
            record = self._read(queue, offset, physical_offset, size)
            if isinstance(record, MessageRecord):
                deliver_at = record.store_timestamp + delay
        now = self._clock.now_ms()
        return deliver_at <= now or deliver_at > now + delay

    def _read(
        self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int
    ) -> MessageRecord | CorruptRecord | None:
        """Return the record of a unit, why it cannot be read, or None if it is gone."""
        return read_unit(self._log, physical_offset, size, (queue.topic, queue.queue_id), offset)

    def _deliver(self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int]) -> int:
        """Put one message; 0 if it cannot be put."""
        physical_offset, size, _ = unit
        record = self._read(queue, offset, physical_offset, size)
        if record is None:
            return 0
        try:
            if isinstance(record, CorruptRecord):
                raise record
            if record.state != STATE_OK:
                raise lost_message(record)
            trailing = self._config.trailing_property_separator
            self._put(delivered(record, trailing_separator=trailing))
        except (CorruptRecord, InvalidMessage, ValueError) as error:
            problem = TubeStoreError(f"{queue.topic}/{queue.queue_id}: message {offset}: {error}")
            _log.warning("%s; not delivered", problem)
            self.problems.append(problem)
            return 0
        return 1
