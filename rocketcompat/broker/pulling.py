"""One pull: what a consumer asks for, what it gets, and pulls that wait for a message.

A pull that finds nothing may be held (RocketMQ's `PullRequestHoldService`): until a message of its
queue is dispatched with a tag that it wants, until its time is over, or until a check finds one.
Checks come every 5 s, in short polling every `short_polling_time_mills` ms, which is then also how
long a pull is held. A held pull that is ready is asked for again by its owner, on the owner's
thread: the dispatcher does no reads for consumers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any

from rocketcompat.formats import (
    PROPERTY_TAGS,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
)
from rocketcompat.messages import DispatchBatch, GetMessageStatus, MessageRecord
from rocketcompat.reading.pull import GetMessageResult, Where, tag_codes
from rocketcompat.record.batches import unwrapped
from rocketcompat.record.compression import unpack_body
from tubestore.clock import Clock
from tubestore.errors import CorruptRecord, InvalidMessage
from tubestore.values import checked_whole

#: How long a push consumer's pull is held, and that of a lite consumer or a caller.
PUSH_SUSPEND_MS, PULL_SUSPEND_MS = 15_000, 20_000
HOLD_CHECK_SECONDS = 5.0
_BARS = re.compile(r"\|\|")


def whole(name: str, value: object, least: int | None = 0, most: int | None = None) -> int:
    """Return a whole number that a caller gives; InvalidMessage otherwise."""
    try:
        number = checked_whole(name, value, least)
        if most is not None and number > most:
            raise ValueError(f"{name} = {number}: at most {most}")
    except (TypeError, ValueError) as error:
        raise InvalidMessage(str(error)) from None
    return number


def of_type(name: str, value: Any, kind: Any) -> Any:
    """Return what a caller gives if it is of a class; InvalidMessage otherwise."""
    if not isinstance(value, kind):
        raise InvalidMessage(f"{name} = {ascii(value)[:60]}: a {kind.__name__} is needed")
    return value


@dataclass(frozen=True)
class Subscription:
    """What a consumer wants of a topic: tags as "A || B", "*" for all, or an SQL92 expression."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    #: Of two subscriptions of a group to a topic the later one counts.
    version: int = 0

    def __post_init__(self) -> None:
        if self.expression_type not in ("TAG", "SQL92"):
            raise InvalidMessage(
                f"expression_type: {self.expression_type!r} is neither 'TAG' nor 'SQL92'"
            )
        if self.expression_type == "SQL92":
            _ = self.where  # a wrong expression is refused here
        elif self.expression and not any(_BARS.split(self.expression)):
            raise InvalidMessage(f"expression: {self.expression!r} names no tag")

    @cached_property
    def tags(self) -> frozenset[str]:
        """The tags that are wanted; empty if all are."""
        if self.expression_type != "TAG" or self.expression in ("", "*"):
            return frozenset()
        return frozenset(filter(None, map(str.strip, _BARS.split(self.expression))))

    @cached_property
    def codes(self) -> frozenset[int] | None:
        """The hashes of the tags; None if all messages match."""
        return tag_codes(" || ".join(self.tags)) if self.tags else None

    @cached_property
    def where(self) -> Where | None:
        """The filter on whole records, of an SQL92 expression."""
        if self.expression_type != "SQL92":
            return None
        from rocketcompat.broker.sql92 import compile_filter

        return compile_filter(self.expression)

    def wants(self, record: MessageRecord) -> bool:
        """True unless the record has another tag of the same hash as one that is wanted."""
        return not self.tags or record.properties.get(PROPERTY_TAGS) in self.tags


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What a consumer asks of one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_count: int = 32
    #: None: what the group's clients subscribed to with their heartbeats.
    subscription: Subscription | None = None
    #: How long the pull may be held, in ms; 0: it is answered at once.
    suspend_ms: int = 0
    #: Committed with the pull: everything below was consumed.
    commit_offset: int | None = None

    def __post_init__(self) -> None:
        whole("offset", self.offset, least=None)
        whole("max_count", self.max_count, least=1)
        whole("suspend_ms", self.suspend_ms)
        if self.subscription is not None:
            of_type("subscription", self.subscription, Subscription)
        if self.commit_offset is not None:
            whole("commit_offset", self.commit_offset)


class PullStatus(Enum):
    """What became of a pull, as RocketMQ's client names it; the broker's response code."""

    FOUND = "SUCCESS"
    #: Nothing yet: ask again from `next_begin_offset`.
    NO_NEW_MSG = "PULL_NOT_FOUND"
    #: Only messages that the consumer does not want, or that are gone: go on at once.
    NO_MATCHED_MSG = "PULL_RETRY_IMMEDIATELY"
    #: The queue has no such offset: go on at `next_begin_offset`.
    OFFSET_ILLEGAL = "PULL_OFFSET_MOVED"


_STATUSES = {
    GetMessageStatus.FOUND: PullStatus.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE: PullStatus.NO_MATCHED_MSG,
    GetMessageStatus.MESSAGE_WAS_REMOVING: PullStatus.NO_MATCHED_MSG,
    GetMessageStatus.OFFSET_FOUND_NULL: PullStatus.NO_NEW_MSG,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: PullStatus.NO_NEW_MSG,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: PullStatus.OFFSET_ILLEGAL,
    GetMessageStatus.OFFSET_TOO_SMALL: PullStatus.OFFSET_ILLEGAL,
}


def pull_status(status: GetMessageStatus, offset: int) -> PullStatus:
    """Return a pull's status from the store's (`PullMessageProcessor`).

    >>> pull_status(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0).value
    'PULL_NOT_FOUND'
    """
    found = _STATUSES.get(status)
    if found is not None:
        return found
    return PullStatus.OFFSET_ILLEGAL if offset else PullStatus.NO_NEW_MSG


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull found; offsets are queue offsets."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    #: May be empty with FOUND: all had another tag of the same hash.
    messages: list[MessageRecord] = field(default_factory=list)
    #: What could not be read, passed over by `next_begin_offset`.
    problems: list[CorruptRecord] = field(default_factory=list)


def result_of(found: GetMessageResult, request: PullRequest, wanted: Subscription) -> PullResult:
    """Return what the consumer gets: exact tags, and messages as the producer had them.

    Of an inner batch it gets the messages from the request's offset on; one that cannot be split
    is a problem, and passed over.
    """
    messages: list[MessageRecord] = []
    problems = found.problems
    for record in found.messages:
        try:
            parts = unwrapped(as_sent(record))
        except CorruptRecord as error:
            place = f"{record.topic}/{record.queue_id}: the inner batch at {record.queue_offset}"
            problems = [*problems, CorruptRecord(place, error.position, error.reason)]
            continue
        if len(parts) > 1:
            parts = [part for part in parts if part.queue_offset >= request.offset]
        messages += filter(wanted.wants, parts)
    return PullResult(
        pull_status(found.status, request.offset),
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        messages,
        problems,
    )


def as_sent(record: MessageRecord) -> MessageRecord:
    """Return a record with its body unpacked, if it was compressed and can be unpacked."""
    if not record.sys_flag & SYS_FLAG_COMPRESSED:
        return record
    body = unpack_body(record.body, record.sys_flag)
    if body is None:
        return record
    flag = record.sys_flag & ~(SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_MASK)
    return replace(record, body=body, sys_flag=flag)


class HeldPull:
    """A pull that waits; `ready` is called once, from any thread, when it is to be asked again."""

    __slots__ = ("deadline_ms", "offset", "ready", "wanted")

    def __init__(
        self, offset: int, wanted: Subscription, deadline_ms: int, ready: Callable[[], None]
    ) -> None:
        self.offset, self.wanted, self.deadline_ms, self.ready = offset, wanted, deadline_ms, ready


class HoldService:
    """The pulls that wait, by queue (`PullRequestHoldService`).

    Guards: `_lock` guards the pulls; no pull's `ready` is called while it is held.
    """

    def __init__(self, clock: Clock, max_offset: Callable[[str, int], int]) -> None:
        self._clock, self._max_offset = clock, max_offset
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int], list[HeldPull]] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._held.values()))

    def hold(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        """Let a pull wait. It is ready at once if a message came since it was answered."""
        with self._lock:
            self._held.setdefault((topic, queue_id), []).append(pull)
        if self._max_offset(topic, queue_id) > pull.offset:
            self._release((topic, queue_id), lambda held: held is pull)

    def release(self, pull: HeldPull) -> None:
        """Forget a pull that nothing waits for any more."""
        with self._lock:
            for key, pulls in list(self._held.items()):
                self._keep(key, [held for held in pulls if held is not pull])

    def arrived(self, batch: DispatchBatch) -> None:
        """Release the pulls that want a message of a batch; called when it was dispatched."""
        if not self._held:
            return
        with self._lock:
            codes = {n: key for n, key in enumerate(batch.queue_keys) if key in self._held}
        for code, key in codes.items():
            tags = set((batch.tags_codes[(batch.queue_codes == code) & batch.queue_rows]).tolist())
            copies = batch.copy_rows[batch.copy_codes == code]
            tags |= set(batch.tags_codes[copies].tolist())
            low = {tag_code & 0xFFFFFFFF for tag_code in tags}
            end = self._max_offset(*key)
            self._release(key, partial(_is_wanted, end, low))

    def check(self) -> None:
        """Release the pulls with a message in their queue, and those with no time left."""
        with self._lock:
            keys = list(self._held)
        now = self._clock.now_ms()
        for key in keys:
            end = self._max_offset(*key)
            self._release(key, partial(_is_over, end, now))

    def release_all(self) -> None:
        """Release every pull: the broker closes."""
        with self._lock:
            keys = list(self._held)
        for key in keys:
            self._release(key, lambda held: True)

    def _release(self, key: tuple[str, int], is_ready: Callable[[HeldPull], bool]) -> None:
        with self._lock:
            pulls = self._held.get(key, [])
            ready = [pull for pull in pulls if is_ready(pull)]
            self._keep(key, [pull for pull in pulls if pull not in ready])
        for pull in ready:
            pull.ready()

    def _keep(self, key: tuple[str, int], pulls: Iterable[HeldPull]) -> None:
        kept = list(pulls)
        if kept:
            self._held[key] = kept
        else:
            self._held.pop(key, None)


def _is_over(end: int, now_ms: int, held: HeldPull) -> bool:
    """True if the queue has come further, or the pull's time is over."""
    return end > held.offset or now_ms >= held.deadline_ms


def _is_wanted(end: int, low_codes: set[int], held: HeldPull) -> bool:
    """True if the batch may have a message that a pull waits for, by the tags' hashes."""
    if end <= held.offset:
        return False
    codes = held.wanted.codes
    return codes is None or any(code & 0xFFFFFFFF in low_codes for code in codes)
