"""What RocketMQ would have answered: the put status of a refusal (`PutMessageStatus`).

A refused put is an exception here; this is for callers that need RocketMQ's names.
"""

from __future__ import annotations

from rocketcompat.commitlog.queue_offsets import TooManyQueues
from rocketcompat.formats import PROPERTIES_SIZE_MAX
from rocketcompat.messages import Message, PutStatus
from rocketcompat.record.prepare import property_text
from tubestore.errors import (
    BatchError,
    DiskFull,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    ReadOnlyStore,
    StoreBusy,
    StoreClosed,
    StoreFailed,
)

_KINDS: tuple[tuple[type[Exception], PutStatus], ...] = (
    (TooManyQueues, PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED),
    (MessageTooLarge, PutStatus.MESSAGE_ILLEGAL),
    (InvalidMessage, PutStatus.MESSAGE_ILLEGAL),
    (InvalidName, PutStatus.MESSAGE_ILLEGAL),
    (StoreBusy, PutStatus.OS_PAGE_CACHE_BUSY),
    (DiskFull, PutStatus.SERVICE_NOT_AVAILABLE),
    (StoreClosed, PutStatus.SERVICE_NOT_AVAILABLE),
    (StoreFailed, PutStatus.SERVICE_NOT_AVAILABLE),
    (ReadOnlyStore, PutStatus.SERVICE_NOT_AVAILABLE),
    (OSError, PutStatus.CREATE_MAPPED_FILE_FAILED),
)


def put_status_of(
    error: Exception, message: Message | None = None, *, compat: str = "4.9.8"
) -> PutStatus:
    """Return the status that RocketMQ gives where this package raised `error`.

    The versions differ for a long property string: 4.9.8 counts characters before it counts
    bytes, so `message` is needed for its answer.

    >>> put_status_of(InvalidName("a/b", "a directory cannot have this name")).value
    'MESSAGE_ILLEGAL'
    """
    if isinstance(error, MessageTooLarge) and error.limit == PROPERTIES_SIZE_MAX:
        text = "" if message is None else property_text(message, trailing_separator=False)
        if compat != "4.9.8" or len(text) <= PROPERTIES_SIZE_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, BatchError) and isinstance(error.__cause__, Exception):
        return put_status_of(error.__cause__, message, compat=compat)
    cause = error.__cause__
    if isinstance(error, DiskFull) and isinstance(cause, OSError) and type(cause) is not DiskFull:
        return PutStatus.CREATE_MAPPED_FILE_FAILED
    return next(
        (status for kind, status in _KINDS if isinstance(error, kind)), PutStatus.UNKNOWN_ERROR
    )
