"""What makes a state file valid: asked by opening, `check` and `repair` alike.

`topics.json` has every topic's settings. A store of many topics has a log of changes beside it,
which `topics.json` names: a line a change, settings by topic with a digest, so that a new topic
costs one line. A torn last line was never acknowledged; any other bad line refuses the store.

`shards.log` has what each shard had: bounds by the name of its directory, with a digest a line. It
is evidence and no state: a line that is not valid does not count, and a missing file is none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import xxhash

from tubestore.core.paths import STORE_FILE
from tubestore.core.state_file import BadState, parse_json, parse_state
from tubestore.errors import TubeStoreError
from tubestore.options import TopicOptions
from tubestore.record.names import (
    PUBLISHED_FILE,
    TOPICS_FILE,
    TOPICS_LOG_PREFIX,
    TOPICS_LOG_SUFFIX,
    check_topic_name,
)
from tubestore.values import whole_number

#: What is wrong where `store.json` records topics and their file is gone.
MISSING_TOPICS = "is missing: put it back, or have `repair` learn the topics from their files"
#: `topics.json` has it while it names a log of changes.
TOPICS_LOG_FEATURE = "topics-log"
#: In `store.json` while there is a ring journal: earlier versions do not read it.
RING_FEATURE = "ring-journal"
#: Hexadecimal digits before the JSON of a line in the log of changes: xxh3 of the JSON.
_DIGEST_DIGITS = 16
#: Numbers that other programs, and our binary files, can hold.
_NUMBER_MAX = 1 << 63


class Bounds(NamedTuple):
    """Where a shard's streams begin and end: what was removed by retention, and what was synced."""

    index_start: int
    data_start: int
    index_end: int
    data_end: int
    #: 1 after `repair` gave up its missing directory: a new one begins behind the ends.
    given_up: int = 0


class SavedTopics(NamedTuple):
    """Topics' settings as saved: by topic, and deleted topics that are not all gone.

    `log` is the number of the log of changes that `topics.json` names, 0 for none.
    """

    settings: dict[str, TopicOptions]
    deleted: set[str]
    log: int = 0


def parse_identity(data: bytes) -> str:
    """Return the store's uuid from `store.json`."""
    found = parse_state(data, [RING_FEATURE]).get("uuid")
    if not isinstance(found, str):
        raise BadState("cannot be read: it has no uuid")
    return found


def has_topics(data: bytes) -> bool:
    """True if `store.json` records that settings of topics were saved; False if it is bad."""
    try:
        return parse_state(data, [RING_FEATURE]).get("topics") is True
    except BadState:
        return False


def has_ring(data: bytes) -> bool:
    """True if `store.json` records that there is a ring journal; False if it is bad."""
    try:
        return RING_FEATURE in (parse_state(data, [RING_FEATURE]).get("features") or [])
    except BadState:
        return False


def parse_finished(data: bytes) -> int:
    """Return the number of the last finished job from `published.json`."""
    number = whole_number(parse_state(data).get("finished"))
    if number is None or not 0 <= number < _NUMBER_MAX:
        raise BadState("cannot be read: it has no number of a finished job")
    return number


def parse_topics(data: bytes) -> SavedTopics:
    """Parse `topics.json`; without the changes in its log."""
    state = parse_state(data, [TOPICS_LOG_FEATURE])
    given, deleted = state.get("topics"), state.get("deleted", [])
    if not isinstance(given, dict) or not isinstance(deleted, list):
        raise BadState("cannot be read: it has no topics")
    log = whole_number(state.get("log", 0))
    if log is None or not 0 <= log < _NUMBER_MAX or (log > 0) != bool(state.get("features")):
        raise BadState("cannot be read: it does not name its log of changes")
    try:
        settings = _settings_of(given)
        names = {check_topic_name(name) for name in deleted}
    except (TubeStoreError, TypeError) as error:
        raise BadState(f"cannot be read: it makes no sense: {error}") from error
    return SavedTopics(settings, names, log)


def _settings_of(given: Mapping[str, Any]) -> dict[str, TopicOptions]:
    return {check_topic_name(name): _options_of(row) for name, row in given.items()}


def topics_log(number: int) -> str:
    """Return the name of a log of changes."""
    return f"{TOPICS_LOG_PREFIX}{number}{TOPICS_LOG_SUFFIX}"


def is_topics_log(name: str) -> bool:
    """Return whether a file's name is that of a log of changes."""
    number = name.removeprefix(TOPICS_LOG_PREFIX).removesuffix(TOPICS_LOG_SUFFIX)
    return number.isdecimal() and name == topics_log(int(number))


def change_line(changed: Mapping[str, TopicOptions]) -> bytes:
    """Return the line of a log of changes that gives some topics their settings."""
    return _line({n: t.as_json() for n, t in changed.items()})


def _line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True).encode()
    return b"%s %s\n" % (xxhash.xxh3_64_hexdigest(text).encode(), text)


def shards_line(changed: Mapping[str, Bounds | None]) -> bytes:
    """Return the line of `shards.log` that gives some shards their bounds; None forgets one."""
    return _line(changed)


def parse_shards(data: bytes) -> tuple[dict[str, Any], int | None]:
    """Return the rows in `shards.log`, and where its first line is that does not count.

    `bounds_of` has the bounds of a row: a store of many shards is opened without all of them.
    """
    found: dict[str, Any] = {}
    bad: int | None = None
    for position, line in _lines(data):
        changed = _content(line)
        if changed is not None:
            found.update(changed)
        elif bad is None:
            bad = position
    for key in [key for key, row in found.items() if row is None]:
        del found[key]
    return found, bad


def bounds_of(row: Any) -> Bounds | None:
    """Return the bounds in a row of `shards.log`; None if it has none."""
    if not isinstance(row, list | tuple) or len(row) != len(Bounds._fields):
        return None
    if set(map(type, row)) != {int} or min(row) < -1 or max(row) >= _NUMBER_MAX:
        return None
    return Bounds(*row)


def read_topics(read: Callable[[str], bytes]) -> SavedTopics:
    """Return topics' settings from `topics.json` and its log of changes.

    `read` returns the content of a state file by its name. A writer in another process may replace
    both files meanwhile. FileNotFoundError if there is no `topics.json`, BadState if it or its log
    is not valid or if the log is missing.
    """
    before = b""
    while True:
        data = read(TOPICS_FILE)
        saved = parse_topics(data)
        if not saved.log:
            return saved
        name = topics_log(saved.log)
        try:
            log = read(name)
        except FileNotFoundError:
            if data == before:
                raise BadState("is missing: put it back", name) from None
            before = data
            continue
        for position, changed in _changes(log):
            if changed is None:
                raise BadState("cannot be read: a damaged line", name, position)
            saved.settings.update(changed)
        return saved


class TopicFiles:
    """The topics of a store, parsed when their files have changed; one thread at a time."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        """`read`: as for `read_topics`."""
        self._read = read
        #: The files as they were read last, by name, and the topics in them.
        self._known: tuple[dict[str, bytes], SavedTopics] | None = None

    def read(self) -> SavedTopics:
        """Return the topics as they are now, the same object while there is no change.

        The caller changes nothing in it. Raises as `read_topics` does.
        """
        if self._known is not None:
            files, saved = self._known
            with contextlib.suppress(FileNotFoundError):  # the log of changes begins anew
                if all(self._read(name) == data for name, data in files.items()):
                    return saved
        files = {}

        def noted(name: str) -> bytes:
            files[name] = self._read(name)
            return files[name]

        self._known = None
        saved = read_topics(noted)
        self._known = files, saved
        return saved


def sound_changes(log: bytes) -> dict[str, TopicOptions]:
    """Return the settings in the sound lines of a log of changes, the newest of each topic."""
    found: dict[str, TopicOptions] = {}
    for _, changed in _changes(log):
        found.update(changed or {})
    return found


def _changes(log: bytes) -> Iterator[tuple[int, dict[str, TopicOptions] | None]]:
    """Yield position and settings of each line, None for a damaged one; no torn last line."""
    for position, line in _lines(log):
        changed = _changed(line)
        if changed is not None or position + len(line) < len(log):
            yield position, changed


def _lines(log: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(log):
        end = log.find(b"\n", position) + 1 or len(log)
        yield position, log[position:end]
        position = end


def _changed(line: bytes) -> dict[str, TopicOptions] | None:
    content = _content(line)
    try:
        return _settings_of(content) if content is not None else None
    except (TubeStoreError, TypeError, ValueError, AttributeError):
        return None


def _content(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line, None if it is torn or damaged."""
    digest, text = line[:_DIGEST_DIGITS], line[_DIGEST_DIGITS + 1 : -1]
    if line[-1:] != b"\n" or digest != xxhash.xxh3_64_hexdigest(text).encode():
        return None
    try:
        content = parse_json(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _options_of(given: dict[str, Any]) -> TopicOptions:
    """Return a topic's settings; TypeError or InvalidMessage if they are none."""
    options = TopicOptions(**given)
    for name, value in given.items():
        if name == "routing" or value is None:
            continue
        number = whole_number(value)
        if number is None:
            raise TypeError(f"{name} = {value!r}: a whole number is needed")
        if not 0 <= number < _NUMBER_MAX:
            raise TypeError(f"{name} = {value!r}: too large or too small")
    if options.id is None:
        raise TypeError("id = None: a whole number is needed")
    return options


_PARSERS: dict[str, Callable[[bytes], Any]] = {
    STORE_FILE: parse_identity,
    TOPICS_FILE: parse_topics,
    PUBLISHED_FILE: parse_finished,
}


def state_trouble(name: str, data: bytes) -> BadState | None:
    """Return what is wrong with the content of the state file of a name; None if it is valid."""
    try:
        parse: Callable[[bytes], Any] = _PARSERS.get(name, parse_state)
        parse(data)
    except BadState as error:
        return error
    return None
