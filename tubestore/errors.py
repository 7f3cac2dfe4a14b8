"""The exceptions of tubestore and rocketcompat: few, and each with its place.

Every one derives from `TubeStoreError`, carries its facts as attributes, and
survives pickling (a worker process may hand it to its parent).
What is expected is not an exception: an empty page, a full buffer that is
being flushed, a torn tail that recovery cut.

A store that refuses calls keeps its reason as an exception. The kept one is never raised: each
raise of one object adds its frames to the object's traceback. `again` makes the one to raise.
"""

from __future__ import annotations

import copy
import errno
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

#: Whether a message is in the store after its append failed; see `TubeStoreError.taken`.
Taken = Literal["no", "yes", "unknown"]
#: How many names a sentence lists.
_NAMES_SHOWN = 8


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


class TubeStoreError(Exception):
    """The root: catch it to catch everything that this package raises by design."""

    #: Of an append or a put. "no": nothing of it is in the store, and readers never see it. "yes":
    #: it has its place (`offset`) and is written when that is possible, but its level was not
    #: reached. "unknown": a write failed in between, and the next opening decides.
    taken: Taken = "no"
    #: Where the message is, if it was taken.
    offset: int | None = None

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)

    def describe(self) -> str:
        """The sentence that a person reads; subclasses write it from their facts."""
        return " ".join(str(a) for a in self.args)

    def __str__(self) -> str:
        return self.describe()


class CorruptRecord(TubeStoreError):
    """Bytes that cannot be what was written: the file, the position in it, and why."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path, self.position, self.reason = path, position, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"{self.path}: damaged at byte {self.position}: {self.reason}"


class StoreClosed(TubeStoreError):
    """The store was closed, or this process is a fork of the one that opened it."""


class StoreFailed(TubeStoreError):
    """A write or sync failed earlier; nothing is acknowledged until the store is reopened."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def describe(self) -> str:
        """Return the sentence."""
        return f"{self.path}: failed ({self.cause}); close the store and open it again"


class StoreLocked(TubeStoreError):
    """Another writer holds the directory."""

    def __init__(self, directory: str, holder: str = "") -> None:
        super().__init__(directory, holder)
        self.directory, self.holder = directory, holder

    def describe(self) -> str:
        """Return the sentence."""
        by = f" by {self.holder}" if self.holder else ""
        return f"{self.directory}: locked{by}; a second writer is refused (open it with mode='r')"


class JobTaken(TubeStoreError):
    """A batch comes again with an id of the store, from another query or with other rows."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id, self.reason = job_id, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"batch {self.job_id!r}: {self.reason}; nothing was written"


class StoreBusy(TubeStoreError, TimeoutError):
    """Both buffers stayed full until the deadline; the message was not taken."""


class DiskFull(TubeStoreError, OSError):
    """No room for a write; acknowledged messages are kept, and a later flush may succeed.

    `taken`: whether the message of the append that raised it has a place in the store.
    """

    def __init__(self, path: str, cause: str, number: int = errno.ENOSPC) -> None:
        OSError.__init__(self, number, os.strerror(number), path)
        self.path, self.cause = path, cause

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.cause, self.errno), vars(self)

    def describe(self) -> str:
        """Return the sentence."""
        kept = "acknowledged messages are kept: make room and go on"
        return f"{self.path}: disk full ({self.cause}); {kept}"


class StorageError(TubeStoreError, OSError):
    """The operating system refused a call on a file of the store; the same call may succeed later.

    What was acknowledged before is not touched by it.
    """

    def __init__(self, path: str, cause: str, number: int | None = None) -> None:
        OSError.__init__(self, number, os.strerror(number) if number else cause, path)
        self.path, self.cause = path, cause

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.cause, self.errno), vars(self)

    def describe(self) -> str:
        """Return the sentence."""
        return f"{self.path}: {self.cause}"


def is_disk_full(error: OSError) -> bool:
    """True if a write failed for want of room, of the disk or of the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def failed_write(path: str, error: OSError) -> DiskFull | StoreFailed:
    """Return the error for a write or sync below `path` that the system refused."""
    failed: DiskFull | StoreFailed
    if is_disk_full(error):
        assert error.errno is not None
        failed = DiskFull(path, str(error), error.errno)
    else:
        failed = StoreFailed(path, str(error))
    # A copy: the caught one refers to the frames of its traceback, and a store may keep this.
    failed.__cause__ = copy.copy(error)
    return failed


def refused_call(path: str, error: OSError) -> DiskFull | StorageError:
    """Return the error for a call that the system refused, to be raised from it."""
    kind = DiskFull if is_disk_full(error) else StorageError
    cause = error.strerror or str(error)
    return kind(str(error.filename or path), cause, error.errno or 0)


class _Rooted(Protocol):
    """A thing with files of its own."""

    @property
    def root(self) -> str:
        """Return the directory of the store."""


_Self = TypeVar("_Self", bound=_Rooted)
_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def documented(
    call: Callable[Concatenate[_Self, _Given], _Answer],
) -> Callable[Concatenate[_Self, _Given], _Answer]:
    """Let a public method raise a TubeStoreError with its path where the system refuses."""

    @functools.wraps(call)
    def reported(self: _Self, *args: _Given.args, **named: _Given.kwargs) -> _Answer:
        try:
            return call(self, *args, **named)
        except OSError as error:
            if isinstance(error, TubeStoreError):
                raise
            raise refused_call(self.root, error) from error

    return reported  # type: ignore[return-value]  # the name of `self` is the wrapper's


def documented_rows(rows: Iterable[_Answer], root: str) -> Iterator[_Answer]:
    """As `documented`, for a generator of rows."""
    try:
        yield from rows
    except OSError as error:
        if isinstance(error, TubeStoreError):
            raise
        raise refused_call(root, error) from error


Kept = TypeVar("Kept", bound=TubeStoreError)


def again(error: Kept) -> Kept:
    """Return a new exception to raise for a kept one: same type and facts, `error` its cause."""
    fresh = copy.copy(error)
    vars(fresh).pop("__notes__", None)  # the list would be shared, and grow
    fresh.__cause__ = error
    return fresh


def note_taken(error: Kept, offset: int) -> Kept:
    """Note on an error whether the message that has its place at `offset` was taken; returns it.

    It waits in memory for room on the disk; after any other trouble the next opening decides.
    """
    if isinstance(error, DiskFull):
        error.taken, error.offset = "yes", offset
    else:
        error.taken = "unknown"
    return error


class ReadOnlyStore(TubeStoreError):
    """A write on a store that was opened with mode='r', or on a copy in an object storage."""


class NotAStore(TubeStoreError):
    """The directory is missing, is no store, or was written by a newer version."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory, self.reason = directory, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"{self.directory}: {self.reason}"


class MessageTooLarge(TubeStoreError, ValueError):
    """A message, or a part of it, above its limit; both in bytes. `setting`: where that is set."""

    def __init__(
        self, size: int, limit: int, what: str = "message", setting: str | None = None
    ) -> None:
        super().__init__(size, limit, what, setting)
        self.size, self.limit, self.what, self.setting = size, limit, what, setting

    def describe(self) -> str:
        """Return the sentence."""
        text = f"{self.what} of {self.size} bytes is above the limit of {self.limit} bytes"
        if self.setting:
            return f"{text}: raise {self.setting}, or make it smaller"
        return f"{text}, which the format has: make it smaller"


class InvalidMessage(TubeStoreError, ValueError):
    """A message, a batch or an argument that cannot be stored as given; nothing was written."""


class InvalidOption(TubeStoreError, ValueError):
    """An option of a job or a data source that is unknown or cannot be used as given."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"option {self.name}: {self.reason}"


class InvalidName(TubeStoreError, ValueError):
    """A topic name that the format or the file system cannot carry."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"{self.name!r}: {self.reason}"


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Return a sentence for a name that is none of those known, with the nearest one."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"unknown {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


class UnknownTopic(TubeStoreError, KeyError):
    """No topic of this name; `topics` lists the names that exist, if they are known."""

    def __init__(self, topic: str, topics: Iterable[str] = ()) -> None:
        self.topics = sorted(topics)
        super().__init__(topic, self.topics)
        self.topic = topic

    def describe(self) -> str:
        """Return the sentence."""
        text = f"no topic {self.topic!r} in this store"
        return f"{text}; there are: {listed(self.topics)}" if self.topics else text


class TopicExists(TubeStoreError):
    """The topic is there already, with other settings or without `exist_ok`."""

    def __init__(self, topic: str, reason: str = "it exists already (exist_ok takes it)") -> None:
        super().__init__(topic, reason)
        self.topic, self.reason = topic, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"topic {self.topic!r}: {self.reason}"


class OffsetOutOfRange(TubeStoreError):
    """An offset below the first that is kept, or beyond the end."""

    def __init__(self, offset: int, first: int, end: int) -> None:
        super().__init__(offset, first, end)
        self.offset, self.first, self.end = offset, first, end

    def describe(self) -> str:
        """Return the sentence."""
        offset, first, end = self.args
        done = (
            f"removed; go on at {first}" if offset < first else f"not there yet; the end is {end}"
        )
        return f"offset {offset} is outside [{first}, {end}]: {done}"


class MemberFenced(TubeStoreError):
    """A member of a group commits or goes on after the group has given its partitions away.

    Nothing was committed. The consumer that raised it has no partitions any more.
    """

    def __init__(self, group: str, member: str, reason: str) -> None:
        super().__init__(group, member, reason)
        self.group, self.member, self.reason = group, member, reason

    def describe(self) -> str:
        """Return the sentence."""
        return f"group {self.group!r}, member {self.member!r}: {self.reason}; nothing was committed"


class OutputIncomplete(TubeStoreError):
    """Output was recorded with its positions, and not all of it is in its topics yet.

    The next commit of the group in the process that writes appends the rest, or the next opening
    for writing. `taken` "yes": it is the output of this call; do not append it again. "no": it is
    that of an earlier call, and nothing of this one was recorded.
    """

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group, self.reason = group, reason

    def describe(self) -> str:
        """Return the sentence."""
        return (
            f"group {self.group!r}: the output was recorded, and not all of it is in its topics"
            f" yet: {self.reason}; the next commit or opening appends the rest"
        )


class DataLoss(TubeStoreError):
    """Something that was acknowledged is gone; the text has what, from where to where."""


class BatchError(TubeStoreError):
    """A batch that did not reach its level as a whole; `acks[i]` is what row i has reached.

    The level may be below the one that was asked for: a row in memory that the disk has no room for
    has "memory", keeps its offset, and is written when there is room. `taken` is what is known of
    the rows that have None: "no", or "unknown" of some; "yes" if there are none.
    """

    def __init__(self, message: str, acks: list[Any]) -> None:
        super().__init__(message, acks)
        self.message, self.acks = message, acks

    def describe(self) -> str:
        """Return the sentence."""
        taken = sum(a is not None for a in self.acks)
        return f"{self.message}; {taken} of {len(self.acks)} rows were taken"
