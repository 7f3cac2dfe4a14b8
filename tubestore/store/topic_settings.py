"""Topics' settings on disk: `topics.json`, and behind a large one a log of changes.

`topics.json` has the settings of all topics, so that to write it costs as much as there are
topics. A store of many topics therefore appends each change to a log, which `topics.json` names,
and writes `topics.json` anew when the log has grown as long. A clean close leaves no log.

| crash | what the next opening finds |
| --- | --- |
| after the new log was made | the old `topics.json` and its log; the new one is removed later |
| after `topics.json` was replaced | the new one with an empty log; the old log is removed later |
| within an append | a torn last line, which was not acknowledged |

Not thread-safe: the caller holds the topics' lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tubestore.core.vfs import VfsFile
from tubestore.options import TopicOptions
from tubestore.record.names import TOPICS_FILE
from tubestore.record.state_files import (
    TOPICS_LOG_FEATURE,
    change_line,
    is_topics_log,
    topics_log,
)
from tubestore.store.directory import StoreDirectory

#: A store of fewer topics has no log: to write them all costs as little as an append.
LOG_FROM_TOPICS = 64


class TopicSettings:
    """Writes the settings of a store's topics; every change is durable when its call returns."""

    def __init__(self, directory: StoreDirectory, log: int) -> None:
        self._directory = directory
        #: The number of the log that `topics.json` names, 0 for none.
        self._log = log
        #: The log while changes can be appended; a log of an earlier process takes none.
        self._file: VfsFile | None = None
        self._end = 0
        #: Topics' settings that the log takes before `topics.json` is written anew.
        self._room = 0

    def put(
        self,
        changed: Mapping[str, TopicOptions],
        all_of: Callable[[], dict[str, TopicOptions]],
        deleted: Iterable[str],
    ) -> None:
        """Save settings of some topics, new or not; OSError if they are not saved.

        `all_of` returns those of all topics until now; `deleted` are as those of `write`.
        """
        if self._file is not None and len(changed) <= self._room:
            self._append(self._file, change_line(changed))
            self._room -= len(changed)
        else:
            self.write({**all_of(), **changed}, deleted)

    def write(self, settings: Mapping[str, TopicOptions], deleted: Iterable[str] = ()) -> None:
        """Replace the settings of all topics; OSError leaves the old ones.

        `deleted` are topics with shards that are still to be moved away. With them in the file,
        their remains after a crash are not taken for a topic of TubeMQ's.
        """
        self._write(settings, deleted, log=len(settings) >= LOG_FROM_TOPICS)

    def close(
        self, all_of: Callable[[], Mapping[str, TopicOptions]], deleted: Iterable[str]
    ) -> None:
        """Leave `topics.json` alone, without a log; where that fails the log stays, and counts."""
        if self._log:
            with contextlib.suppress(OSError):
                self._write(all_of(), deleted, log=False)
        self.release()

    def release(self) -> None:
        """Close the log as it is; harmless when repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, file: VfsFile, line: bytes) -> None:
        try:
            file.pwrite(line, self._end)
            file.sync()
        except BaseException:
            # The line may be there: without the file, the next change writes all settings anew.
            with contextlib.suppress(OSError):
                file.truncate(self._end)
            self.release()
            raise
        self._end += len(line)

    def _write(
        self, settings: Mapping[str, TopicOptions], deleted: Iterable[str], *, log: bool
    ) -> None:
        directory = self._directory
        content: dict[str, Any] = {"topics": {n: t.as_json() for n, t in settings.items()}}
        if names := sorted(deleted):
            content["deleted"] = names
        number, file = 0, None
        if log:
            number = directory.next_id()
            content |= {"features": [TOPICS_LOG_FEATURE], "log": number}
            file = self._make_log(number)
        try:
            directory.write_state(TOPICS_FILE, content)
        except BaseException:
            # Which log `topics.json` names is not known: the next change writes it anew.
            self.release()
            if file is not None:
                file.close()
            raise
        self.release()
        self._log, self._file, self._end, self._room = number, file, 0, len(settings)
        self._remove_other_logs()
        directory.note_topics()

    def _make_log(self, number: int) -> VfsFile:
        """Make an empty log, durably, before `topics.json` names it."""
        directory = self._directory
        file = directory.vfs.open(directory.path_of(topics_log(number)), create=True)
        try:
            file.truncate(0)
            file.sync()
            directory.vfs.sync_directory(directory.path_of(""))
        except BaseException:
            file.close()
            raise
        return file

    def _remove_other_logs(self) -> None:
        """Remove logs that `topics.json` does not name; one that stays is removed later."""
        vfs, path_of = self._directory.vfs, self._directory.path_of
        with contextlib.suppress(OSError):
            for name, _, _ in vfs.entries(path_of("")):
                if is_topics_log(name) and name != topics_log(self._log):
                    vfs.remove(path_of(name))
