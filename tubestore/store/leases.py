"""Leases: what a reader still needs, so that retention leaves it alone for a while.

    <root>/.tubestore/leases/<uuid>.json    holder, expiry, first index offset needed of each shard

A reader that takes long (a scan of hours, the tasks of a Spark query) holds a lease and renews it.
Retention does not touch what an unexpired lease holds, and does not empty a trash that holds it.
The lease of a holder that died ends when it expires. A lease costs other processes nothing but disk
space.

Times are the wall clock's, in ms. A file that cannot be read holds everything, for a day from
its last change: it may be a newer version's.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.state_file import parse_state, state_bytes
from tubestore.core.vfs import Vfs
from tubestore.errors import StoreClosed, TubeStoreError, documented
from tubestore.record.names import LEASES_DIRECTORY
from tubestore.values import moment_text

SUFFIX = ".json"
#: How long a file that cannot be read holds everything.
_UNREADABLE_MS = 86_400_000
#: How long an expired lease may still be renewed under its name: after twice this it is deleted.
_RENEWABLE_MS = 300_000


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a lease's file; or, without an expiry, what else retention waits for."""

    path: str
    holder: str
    expires_ms: int | None
    #: The first index offset needed, by `<topic>-<store id>`; None: everything of all shards.
    offsets: Mapping[str, int] | None

    @property
    def reason(self) -> str:
        """Why a file stays that it holds."""
        if self.expires_ms is None:
            return f"held by {self.holder}"
        return f"held by a lease of {self.holder} until {moment_text(self.expires_ms)}"

    def ended(self, now_ms: int) -> bool:
        """Return whether it has expired."""
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def holds(self, store_key: str) -> int | None:
        """Return the first index offset that it needs of a shard; None if it needs nothing."""
        return 0 if self.offsets is None else self.offsets.get(store_key)


def read_leases(vfs: Vfs, root: str) -> list[LeaseRecord]:
    """Return all leases of a root, expired ones too."""
    found = []
    directory = _directory_of(root)
    for name, is_directory, _ in vfs.entries(directory):
        if is_directory or not name.endswith(SUFFIX):
            continue
        path = join(directory, name)
        try:
            record = _parse(path, vfs.read_file(path))
        except FileNotFoundError:
            continue  # released meanwhile
        if record is None:
            until = vfs.modified_ms(path) + _UNREADABLE_MS
            record = LeaseRecord(path, f"unreadable lease {name}", until, None)
        found.append(record)
    return found


def live_leases(vfs: Vfs, root: str, now_ms: int) -> list[LeaseRecord]:
    """Return the leases that have not expired."""
    return [lease for lease in read_leases(vfs, root) if not lease.ended(now_ms)]


def forget_expired(vfs: Vfs, root: str, now_ms: int) -> None:
    """Delete the files of leases that expired so long ago that they cannot be renewed."""
    for lease in read_leases(vfs, root):
        if lease.ended(now_ms - 2 * _RENEWABLE_MS):
            with contextlib.suppress(FileNotFoundError):
                vfs.remove(lease.path)


def _directory_of(root: str) -> str:
    return join(root, OWN_DIRECTORY, LEASES_DIRECTORY)


def _parse(path: str, data: bytes) -> LeaseRecord | None:
    try:
        found = parse_state(data)
        offsets = {str(key): int(offset) for key, offset in found["offsets"].items()}
        return LeaseRecord(path, str(found["holder"]), int(found["expires_ms"]), offsets)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


class Lease:
    """A lease that this process holds; a context manager that releases it. Thread-safe.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     _ = store.create_topic("t").append(b"one")
    ...     with store.lease(["t"], ttl="10m", holder="a scan") as lease:
    ...         print(lease.holder, lease.ttl_ms, lease.offsets)
    ...         lease.renew()
    a scan 600000 {'t-0': 0}
    """

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        offsets: Mapping[str, int],
        *,
        holder: str,
        ttl_ms: int,
        clock: Clock,
        check: Callable[[Mapping[str, int]], None],
    ) -> None:
        """Take it; `check` raises for offsets of shards that are not there (any more)."""
        self._vfs, self.root, self._clock, self._check = vfs, root, clock, check
        self._lock = threading.Lock()
        self._path: str | None = None
        self.holder, self.ttl_ms = holder, ttl_ms
        self.offsets = dict(offsets)
        self.expires_ms = 0
        self._hold()

    def _hold(self) -> None:
        """Write the lease, then check that all is there: from then on nothing removes it."""
        now = self._clock.now_ms()
        if self._path is None or self.expires_ms + _RENEWABLE_MS < now:
            # A name of its own: the old file may be about to be deleted.
            self._path = join(_directory_of(self.root), f"{uuid.uuid4()}{SUFFIX}")
        directory, expires_ms = _directory_of(self.root), now + self.ttl_ms
        content = {
            "holder": self.holder,
            "expires_ms": expires_ms,
            "offsets": self.offsets,
        }
        if not self._vfs.exists(directory):
            self._vfs.make_directories(directory)
        self._vfs.replace_file(self._path, state_bytes(content))
        self.expires_ms = expires_ms
        try:
            self._check(self.offsets)
        except TubeStoreError:
            self._release()
            raise

    @documented
    def renew(self, offsets: Mapping[str, int] | None = None) -> None:
        """Hold it for another `ttl_ms`; with `offsets` from these offsets on.

        Raises OffsetOutOfRange, and releases the lease, if something that is needed has gone
        because the lease was not renewed in time. Raises StoreClosed if it was released.
        """
        with self._lock:
            if self._path is None:
                raise StoreClosed(f"the lease of {self.holder!r} was released")
            self.offsets |= offsets or {}
            self._hold()

    @documented
    def release(self) -> None:
        """Release it; harmless when repeated."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._vfs.remove(path)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease(holder={self.holder!r}, expires_ms={self.expires_ms}, {self.offsets})"
