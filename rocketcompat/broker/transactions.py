"""Transactional messages: half, commit, rollback, check-back (RocketMQ's, since 4.3).

A half message is put into RMQ_SYS_TRANS_HALF_TOPIC, where no consumer sees it. A commit puts it
into its own topic, with the place of the half message in the record; either end puts an *op*
message, with the half message's queue offset, into RMQ_SYS_TRANS_OP_HALF_TOPIC. `check` goes on in
the half topic: it passes ended messages over, and asks the producer about each other one that is
older than `transaction_time_out`. After `transaction_check_max` checks, or when its time in the log
is over, a message goes to TRANS_CHECK_MAX_TIME_TOPIC.

Topics, properties and bodies are those of a real broker, which can go on from here, and the
reverse. A real broker asks about a message with an immunity time although it ended before its
second check; this one does not. A crash between the commit's two puts commits the message twice, as
in RocketMQ. The position of the check is that of the group CID_RMQ_SYS_TRANS, written with the
other offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from rocketcompat.broker.allocation import MessageQueue
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.pulling import of_type
from rocketcompat.broker.tables import CHECK_TIMES_TOPIC, HALF_TOPIC, OP_TOPIC, checked_group
from rocketcompat.formats import (
    PROPERTY_TAGS,
    SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_COMMIT,
    encode_properties,
    parse_properties,
)
from rocketcompat.messages import NOT_DELAYED, Message, MessageRecord, PutResult
from rocketcompat.record.prepare import property_text
from rocketcompat.record.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_WAIT,
)
from tubestore.core.doors import logger
from tubestore.errors import CorruptRecord, InvalidMessage

_log = logger(__name__)
SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"
PROPERTY_PREPARED, PROPERTY_GROUP = "TRAN_MSG", "PGROUP"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: The half message's queue offset before it was put again.
PROPERTY_PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
_REMOVE_TAG = "d"
_OPS_AT_ONCE = 32


class TransactionState(Enum):
    """The outcome of a transaction, as its producer reports it."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    #: Not known yet: the broker asks later.
    UNKNOW = "UNKNOW"


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message: its place, by which it is ended."""

    queue: MessageQueue
    put: PutResult
    msg_id: str


Checker = Callable[[MessageRecord], TransactionState]


class Transactions:
    """The transactional messages of a broker; one for each broker.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     with Broker(store) as broker:
    ...         transactions = Transactions(broker)
    ...         message = rocketcompat.Message("orders", b"hello")
    ...         print(transactions.send("payments", message, lambda half: COMMIT).name)
    COMMIT_MESSAGE
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._checkers: dict[str, Checker] = {}
        #: Held while the half topic is checked.
        self._lock = threading.Lock()
        seconds = broker.options.transaction_check_interval / 1000
        broker.timers.every(seconds, "TransactionalMessageCheckService", self.check)

    def register(self, group: str, checker: Checker) -> None:
        """Set what is asked about the half messages of a producer group.

        It gets a message as it was sent; what it raises counts as `UNKNOW`.
        """
        self._checkers[checked_group(group)] = checker

    def send(
        self, group: str, message: Message, execute: Callable[[HalfMessage], TransactionState],
        *, key: str | None = None,
    ) -> TransactionState:  # fmt: skip
        """Put a half message, call `execute`, and end the message as it returns.

        If `execute` raises, the state is not known: the broker asks the group's checker later.
        """
        half = self.prepare(group, message, key=key)
        state = execute(half)
        if not isinstance(state, TransactionState):
            raise InvalidMessage(f"execute: returned {state!r}, not a TransactionState")
        self.end(group, half.put.physical_offset, half.put.queue_offset, state)
        return state

    def prepare(self, group: str, message: Message, *, key: str | None = None) -> HalfMessage:
        """Put a half message, which no consumer sees before it is committed."""
        checked_group(group)
        of_type("message", message, Message)
        queue = self.broker.queue_for(message.topic, key=key)
        message, msg_id = self.broker.prepared(message, queue.queue_id)
        if message.delay_level > 0:
            raise InvalidMessage("delay_level: a transactional message cannot be delayed")
        pairs = self._pairs(message)
        pairs |= {
            PROPERTY_PREPARED: "true",
            PROPERTY_GROUP: group,
            PROPERTY_REAL_TOPIC: message.topic,
            PROPERTY_REAL_QUEUE_ID: str(queue.queue_id),
        }
        self.broker.topics.for_group(HALF_TOPIC, 1)
        half = replace(
            message, topic=HALF_TOPIC, queue_id=0, properties=self._text(pairs), tags=None,
            keys=None, sys_flag=message.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
            delay_level=NOT_DELAYED,
        )  # fmt: skip
        return HalfMessage(queue, self.broker.put(half), msg_id)

    def end(
        self, group: str, physical_offset: int, queue_offset: int, state: TransactionState
    ) -> PutResult | None:
        """Commit or roll back a half message; returns the place of a committed one.

        InvalidMessage if the half message is of another group or place; OffsetOutOfRange and
        CorruptRecord if it cannot be read.
        """
        if state is TransactionState.UNKNOW:
            return None
        half = self.broker.store.look_message(physical_offset)
        owner = half.properties.get(PROPERTY_GROUP)
        if half.topic != HALF_TOPIC or owner != group or half.queue_offset != queue_offset:
            raise InvalidMessage(
                f"{physical_offset}: is not the half message {queue_offset} of {group!r}"
            )
        put = None
        if state is TransactionState.COMMIT_MESSAGE:
            put = self.broker.put(self._committed(half))
        self._put_op(queue_offset)
        return put

    def _committed(self, half: MessageRecord) -> Message:
        """Return the message that a half message becomes; RocketMQ keeps all properties, too."""
        topic, queue_id = _own_queue(half)
        flag = half.sys_flag & ~SYS_FLAG_TRANSACTION_MASK | TRANSACTION_COMMIT
        return replace(
            self._again(half, half.properties), topic=topic, queue_id=queue_id, sys_flag=flag,
            prepared_transaction_offset=half.physical_offset,
        )  # fmt: skip

    def _again(self, record: MessageRecord, pairs: dict[str, str]) -> Message:
        """Return a record as a message that is put again, with other properties."""
        return Message(
            record.topic, record.body, properties=self._text(pairs), queue_id=record.queue_id,
            flag=record.flag, sys_flag=record.sys_flag, born_timestamp=record.born_timestamp,
            born_host=record.born_host, store_host=record.store_host,
            reconsume_times=record.reconsume_times, delay_level=NOT_DELAYED,
        )  # fmt: skip

    def _put_op(self, queue_offset: int) -> None:
        """Note that the half message at a queue offset has ended."""
        self.broker.topics.for_group(OP_TOPIC, 1)
        pairs = {PROPERTY_WAIT: "true", PROPERTY_TAGS: _REMOVE_TAG}
        body = str(queue_offset).encode()
        host = self.broker.store_host
        self.broker.put(
            Message(OP_TOPIC, body, properties=self._text(pairs), born_host=host, store_host=host)
        )

    def _pairs(self, message: Message) -> dict[str, str]:
        trailing = self.broker.store.config.trailing_property_separator
        return parse_properties(property_text(message, trailing_separator=trailing))

    def _text(self, pairs: dict[str, str]) -> str:
        trailing = self.broker.store.config.trailing_property_separator
        return encode_properties(pairs, trailing_separator=trailing)

    # -- check-back

    def check(self) -> int:
        """Go on in the half topic, and ask about messages that are due; returns how many.

        The background does so every `transaction_check_interval` ms.
        """
        with self._lock:
            return _Check(self, dict(self._checkers)).run()


class _Check:
    """One round over the half topic (`TransactionalMessageServiceImpl.check`)."""

    def __init__(self, transactions: Transactions, checkers: dict[str, Checker]) -> None:
        self._transactions, self._checkers = transactions, checkers
        self._broker = transactions.broker
        self._options, self._now = self._broker.options, self._broker.clock.now_ms()
        #: Half messages that have ended -> their op messages; op messages that are done with.
        self._ended: dict[int, int] = {}
        self._done: set[int] = set()
        #: As `_ended`, of half messages before the check's position: they may have been put again.
        self._ended_before: dict[int, int] = {}

    def run(self) -> int:
        """Do the round; returns how many messages were asked about."""
        begin, op_begin = self._position(HALF_TOPIC), self._position(OP_TOPIC)
        self._read_ops(op_begin, begin)
        asked, offset = 0, begin
        end = self._broker.store.max_offset_in_queue(HALF_TOPIC, 0)
        while offset < end:
            op = self._ended.pop(offset, None)
            if op is not None:
                self._done.add(op)
                offset += 1
                continue
            found = self._broker.store.get_message(HALF_TOPIC, 0, offset, 1)
            if not found.messages:
                if found.next_begin_offset <= offset:
                    break
                for problem in found.problems:
                    self._broker.timers.report("half messages", problem)
                offset = found.next_begin_offset
                continue
            half = found.messages[0]
            if not self._is_over(half):
                if half.store_timestamp >= self._now:
                    break
                waits = self._waits(half)
                if waits is None:
                    break
                if not waits:
                    asked += self._ask(half)
            offset += 1
        if offset != begin:
            self._commit(HALF_TOPIC, offset)
        if offset >= end:
            self._done |= {*self._ended_before.values()}
        op_end = op_begin
        while op_end in self._done:
            op_end += 1
        if op_end != op_begin:
            self._commit(OP_TOPIC, op_end)
        return asked

    def _position(self, topic: str) -> int:
        found = self._broker.offsets.find(SYSTEM_GROUP, topic, 0)
        first = self._broker.store.min_offset_in_queue(topic, 0)
        return max(found or 0, first)

    def _commit(self, topic: str, offset: int) -> None:
        self._broker.commit_offset(SYSTEM_GROUP, topic, 0, offset)

    def _read_ops(self, offset: int, half_begin: int) -> None:
        """Read all op messages."""
        end = self._broker.store.max_offset_in_queue(OP_TOPIC, 0)
        while offset < end:
            found = self._broker.store.get_message(OP_TOPIC, 0, offset, _OPS_AT_ONCE)
            if found.next_begin_offset <= offset:
                break
            self._done |= {*range(offset, found.next_begin_offset)}
            for op in found.messages:
                # A broker of 5.x puts several offsets into one op message.
                for text in op.body.decode("ascii", "replace").split(","):
                    if text.isdecimal():
                        is_before = int(text) < half_begin
                        ended = self._ended_before if is_before else self._ended
                        ended[int(text)] = op.queue_offset
                        self._done.discard(op.queue_offset)
            offset = found.next_begin_offset

    def _is_over(self, half: MessageRecord) -> bool:
        """Put a message aside that was checked too often, or is too old; True if it was."""
        times = half.properties.get(PROPERTY_CHECK_TIMES, "0")
        checked = int(times) if times.isdecimal() else 0
        reserved_ms = self._broker.store.config.file_reserved_time * 3_600_000
        is_old = self._now - half.born_timestamp > reserved_ms
        if checked < self._options.transaction_check_max and not is_old:
            return False
        _log.warning(
            "half message %d of %s: put into %s after %d checks",
            half.queue_offset, half.properties.get(PROPERTY_GROUP), CHECK_TIMES_TOPIC, checked,
        )  # fmt: skip
        self._broker.topics.for_group(CHECK_TIMES_TOPIC, 1)
        again = self._transactions._again(half, half.properties)
        self._broker.put(replace(again, topic=CHECK_TIMES_TOPIC, queue_id=0))
        return True

    def _waits(self, half: MessageRecord) -> bool | None:
        """True if a message was put again for later, False if it is to be asked about.

        None if it is younger than the time-out, and so are those behind it.
        """
        age = self._now - half.born_timestamp
        immunity = half.properties.get(PROPERTY_IMMUNITY_SECONDS)
        if immunity is None:
            return None if 0 <= age < self._options.transaction_time_out else False
        seconds = int(immunity) if immunity.isdecimal() else -1
        wanted = seconds * 1000 if seconds >= 0 else self._options.transaction_time_out
        if age >= wanted:
            return False
        pairs = half.properties
        if not self._ended_as_before(half):
            pairs.setdefault(PROPERTY_PREPARED_OFFSET, str(half.queue_offset))
            self._broker.put(self._transactions._again(half, pairs))
        return True

    def _ended_as_before(self, half: MessageRecord) -> bool:
        """Return True if a message was put again, and has ended under its first offset."""
        prepared = half.properties.get(PROPERTY_PREPARED_OFFSET, "")
        if not prepared.isdecimal():
            return False
        offset = int(prepared)
        op = self._ended.pop(offset, None)
        if op is not None:
            self._done.add(op)
        return op is not None or offset in self._ended_before

    def _ask(self, half: MessageRecord) -> int:
        """Put the message again, with one more check, and ask its producer; 1 if it was asked."""
        if self._ended_as_before(half):
            return 0
        pairs = half.properties
        times = pairs.get(PROPERTY_CHECK_TIMES, "0")
        pairs[PROPERTY_CHECK_TIMES] = str((int(times) if times.isdecimal() else 0) + 1)
        put = self._broker.put(self._transactions._again(half, pairs))
        group = pairs.get(PROPERTY_GROUP, "")
        checker = self._checkers.get(group)
        if checker is None:
            _log.warning("half message %d: no checker of group %r", half.queue_offset, group)
            return 0
        try:
            topic, queue_id = _own_queue(half)
            state = checker(replace(half, topic=topic, queue_id=queue_id))
            if not isinstance(state, TransactionState):
                raise InvalidMessage(f"the checker returned {state!r}, not a TransactionState")
            self._transactions.end(group, put.physical_offset, put.queue_offset, state)
        except Exception as error:
            self._broker.timers.report(f"the checker of {group}", error)
        return 1


def _own_queue(half: MessageRecord) -> tuple[str, int]:
    """Return the topic and queue that a half message is for; CorruptRecord without them."""
    topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
    queue_id = half.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        reason = "a half message without its own topic and queue"
        raise CorruptRecord(HALF_TOPIC, half.physical_offset, reason)
    return topic, int(queue_id)


COMMIT = TransactionState.COMMIT_MESSAGE
ROLLBACK = TransactionState.ROLLBACK_MESSAGE
UNKNOWN = TransactionState.UNKNOW
