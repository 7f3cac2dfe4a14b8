"""How far each structure has come: what recovery may trust without reading it (D2).

`<root>/.tubestore/progress.json`, replaced whole. For the log and for every follower two marks,
physical offsets: below *written* everything is in its files (in the page cache, so it survives a
kill), below *synced* on stable storage. After a reboot only *synced* counts.

Always true:
- a mark is taken before it is written, and is never above what is true then;
- marks that cannot be trusted do not count: a file that is missing, damaged or of a foreign machine
  has no marks, and neither has a store that a broker has opened since. A broker writes the `lock`
  file when it starts and a store of this package does not, so the file's time shows it. A `lock`
  without content was written by neither: a power cut took what the first opening wrote, and its
  time with it, and the marks count.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from rocketcompat.files.lock import is_unwritten
from rocketcompat.formats import LOCK_FILE, OWN_DIRECTORY, PROGRESS_FILE
from tubestore.core.quarantine import Quarantine
from tubestore.core.state_file import parse_json
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore

FORMAT = 1
#: Features a reader has to know; none yet.
FEATURES: frozenset[str] = frozenset()
QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """Physical offsets below which everything is in the page cache / on stable storage."""

    written: int
    synced: int


@dataclass(slots=True)
class Progress:
    """The content of the file."""

    log: Mark
    followers: dict[str, Mark] = field(default_factory=dict)
    #: Closed with everything dispatched and synced; then also each queue's next offset.
    clean: bool = False
    queues: dict[QueueKey, int] = field(default_factory=dict)
    log_minimum: int = 0
    #: Damaged regions of the log below its mark: (start, end, reason).
    damages: list[tuple[int, int, str]] = field(default_factory=list)
    #: With `queues`: where each queue's first file starts, in bytes, if not at 0. None if the
    #: marks do not contain it.
    queue_starts: dict[QueueKey, int] | None = None
    #: Of a structure, as of its synced mark: the number of its units in queues, or of its items.
    places: dict[str, int] = field(default_factory=dict)
    #: Next offsets of queues that neither a record nor a unit shows: their messages are lost.
    next_offsets: dict[QueueKey, int] = field(default_factory=dict)

    def trusted(self, mark: Mark, *, same_boot: bool) -> int:
        """Return the mark that counts."""
        return mark.written if same_boot else mark.synced


@dataclass(frozen=True, slots=True)
class Trust:
    """What a recovery may take from a structure's files without reading the log; physical offsets.

    Below `mark` everything is on stable storage; None without a mark that counts.
    """

    mark: int | None
    #: True if the structure was closed at the log's end: nothing in its files needs a look.
    as_left: bool = False
    #: True if only this package has written since the marks; else a broker may have.
    own: bool = True
    #: From here on the log was verified: without a mark a broker's recovery trusts what is before.
    verified_from: int = 0
    #: The same for the index, which a broker syncs more rarely.
    index_verified_from: int = 0
    #: How many places the queues have together below `mark`; None if that is not recorded.
    places: int | None = None
    #: Where files and tails go that were dropped without a proof that they are torn.
    quarantine: Quarantine | None = None

    @property
    def keeper(self) -> Quarantine | None:
        """The quarantine; None if what is dropped is provably torn."""
        return None if self.own else self.quarantine


class ProgressFile:
    """Reads and replaces the file."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._vfs, self._root = vfs, root
        self._directory = os.path.join(root, OWN_DIRECTORY)
        self.path = os.path.join(self._directory, PROGRESS_FILE)
        self._last: bytes | None = None

    def read(self) -> tuple[Progress, bool] | None:
        """Return the marks and whether the machine still runs since they were written.

        None without marks that can be trusted. NotAStore if a newer version wrote them.
        """
        try:
            raw = self._vfs.read_file(self.path)
            content = parse_json(raw)
            number, features = content["format"], set(content["features"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if number != FORMAT or features - FEATURES:
            raise NotAStore(self._root, f"its {PROGRESS_FILE} was written by a newer version")
        try:
            progress = _from_json(content)
            opened, boot = content["lock_modified_ms"], content["boot_id"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None
        if opened != self._lock_modified_ms() and not is_unwritten(self._vfs, self._root):
            return None
        return progress, boot == self._vfs.boot_id()

    def forget(self) -> None:
        """Remove marks that are not trusted, durably.

        This is done before anything that they cover is undone: a power cut can bring back the
        lock's old time, and the marks would be trusted again. The directory is synced even if there
        is no file: a process that was killed may have removed it without the sync.
        """
        if self._vfs.exists(self.path):
            self._vfs.remove(self.path)
        if self._vfs.exists(self._directory):
            self._vfs.sync_directory(self._directory)

    def write(self, progress: Progress, *, sync: bool) -> None:
        """Replace the file; durable on return with `sync`. Harmless when nothing changed."""
        content = {
            "format": FORMAT,
            "features": sorted(FEATURES),
            "boot_id": self._vfs.boot_id(),
            "lock_modified_ms": self._lock_modified_ms(),
            **_to_json(progress),
        }
        raw = json.dumps(content, indent=1).encode()
        if raw == self._last and not sync:
            return
        if not self._vfs.exists(self._directory):
            self._vfs.make_directories(self._directory)
            self._vfs.sync_directory(self._root)
        self._vfs.replace_file(self.path, raw, sync=sync)
        self._last = raw

    def _lock_modified_ms(self) -> int:
        try:
            return self._vfs.modified_ms(os.path.join(self._root, LOCK_FILE))
        except OSError:
            return -1


def _to_json(progress: Progress) -> dict[str, Any]:
    content: dict[str, Any] = {
        "clean": progress.clean,
        "log_minimum": progress.log_minimum,
        "log": [progress.log.written, progress.log.synced],
        "followers": {n: [m.written, m.synced] for n, m in sorted(progress.followers.items())},
        "damages": [list(damage) for damage in progress.damages],
        "queues": _by_topic(progress.queues),
    }
    if progress.queue_starts is not None:
        content["queue_starts"] = _by_topic(progress.queue_starts)
    if progress.places:
        content["places"] = dict(sorted(progress.places.items()))
    if progress.next_offsets:
        content["next_offsets"] = _by_topic(progress.next_offsets)
    return content


def _by_topic(table: dict[QueueKey, int]) -> dict[str, dict[str, int]]:
    rows: dict[str, dict[str, int]] = {}
    for (topic, queue_id), value in sorted(table.items()):
        rows.setdefault(topic, {})[str(queue_id)] = value
    return rows


def _by_queue(rows: dict[str, dict[str, int]]) -> dict[QueueKey, int]:
    return {(t, int(n)): int(value) for t, row in rows.items() for n, value in row.items()}


def _from_json(content: dict[str, Any]) -> Progress:
    return Progress(
        log=_mark(content["log"]),
        followers={str(name): _mark(pair) for name, pair in content["followers"].items()},
        clean=content["clean"] is True,
        queues=_by_queue(content["queues"]),
        queue_starts=_by_queue(content["queue_starts"]) if "queue_starts" in content else None,
        log_minimum=int(content["log_minimum"]),
        damages=[(int(a), int(b), str(reason)) for a, b, reason in content["damages"]],
        places={str(name): int(count) for name, count in content.get("places", {}).items()},
        next_offsets=_by_queue(content.get("next_offsets", {})),
    )


def _mark(pair: Any) -> Mark:
    written, synced = pair
    if not (type(written) is int and type(synced) is int and 0 <= synced <= written):
        raise ValueError(f"no marks: {pair!r}")
    return Mark(written, synced)
