"""What makes a state file valid: asked by opening, `check` and `repair` alike.

State files are JSON objects with a `version` and perhaps `features`. A file that is none of this
version refuses the store, and `check` reports it with the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tubestore.errors import TubeStoreError
from tubestore.options import TopicOptions
from tubestore.record.names import PUBLISHED_FILE, STORE_FILE, TOPICS_FILE, check_topic_name
from tubestore.values import whole_number

#: Version of the state files that this version reads and writes.
STATE_VERSION = 1
#: What is wrong where `store.json` records topics and their file is gone.
MISSING_TOPICS = "is missing: put it back, or have `repair` learn the topics from their files"
#: Numbers that other programs, and our binary files, can hold.
_NUMBER_MAX = 1 << 63


class BadState(ValueError):
    """The content of a state file is not valid; the text is the reason."""


class NewerState(BadState):
    """A state file of another version of this package, which can read it."""


class SavedTopics(NamedTuple):
    """What `topics.json` holds: settings by topic, and deleted topics that are not all gone."""

    settings: dict[str, TopicOptions]
    deleted: set[str]


def parse_json(data: bytes) -> Any:
    """Parse JSON bytes; ValueError if they are not valid JSON."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BadState("nested too deeply") from error


def parse_state(data: bytes) -> dict[str, Any]:
    """Return the object in a state file of this version; BadState for anything else."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise BadState(f"cannot be read: {error}") from error
    if not isinstance(found, dict) or whole_number(found.get("version")) is None:
        raise BadState("cannot be read: not a JSON object with a version")
    version, features = found["version"], found.get("features")
    if version != STATE_VERSION or features:
        raise NewerState(f"version {version}, features {features}: not of this version")
    return found


def parse_identity(data: bytes) -> str:
    """Return the store's uuid from `store.json`."""
    found = parse_state(data).get("uuid")
    if not isinstance(found, str):
        raise BadState("cannot be read: it has no uuid")
    return found


def has_topics(data: bytes) -> bool:
    """Whether `store.json` records that settings of topics were saved; False if it is bad."""
    try:
        return parse_state(data).get("topics") is True
    except BadState:
        return False


def parse_finished(data: bytes) -> int:
    """Return the number of the last finished job from `published.json`."""
    number = whole_number(parse_state(data).get("finished"))
    if number is None or not 0 <= number < _NUMBER_MAX:
        raise BadState("cannot be read: it has no number of a finished job")
    return number


def parse_topics(data: bytes) -> SavedTopics:
    """Parse `topics.json`."""
    state = parse_state(data)
    given, deleted = state.get("topics"), state.get("deleted", [])
    if not isinstance(given, dict) or not isinstance(deleted, list):
        raise BadState("cannot be read: it has no topics")
    try:
        settings = {check_topic_name(name): _options_of(row) for name, row in given.items()}
        names = {check_topic_name(name) for name in deleted}
    except (TubeStoreError, TypeError) as error:
        raise BadState(f"cannot be read: it makes no sense: {error}") from error
    return SavedTopics(settings, names)


def _options_of(given: dict[str, Any]) -> TopicOptions:
    """Return a topic's settings; TypeError or InvalidMessage if they are none."""
    options = TopicOptions(**given)
    for name, value in given.items():
        number = value if value is None or isinstance(value, str) else whole_number(value)
        if value is not None and number is None:
            raise TypeError(f"{name} = {value!r}: a whole number is needed")
        if isinstance(number, int) and not 0 <= number < _NUMBER_MAX:
            raise TypeError(f"{name} = {value!r}: too large or too small")
    if not isinstance(options.id, int):
        raise TypeError(f"id = {options.id!r}: a whole number is needed")
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
