"""State files: JSON objects with a `version` and perhaps `features`, of both formats.

A file that is none of this version refuses the store, and `check` reports it with the same words.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from tubestore.values import whole_number

#: Version of the state files that this version reads and writes.
STATE_VERSION = 1


class BadState(ValueError):
    """The content of a state file is not valid; the text is the reason.

    `name` and `position` are the file and the byte in it, where another file than the one that
    was asked for is not valid.
    """

    def __init__(self, reason: str, name: str = "", position: int = 0) -> None:
        super().__init__(reason)
        self.name, self.position = name, position


class NewerState(BadState):
    """A state file of another version of this package, which can read it."""


def parse_json(data: bytes) -> Any:
    """Parse JSON bytes; ValueError if they are not valid JSON."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BadState("nested too deeply") from error


def parse_state(data: bytes, features: Container[str] = ()) -> dict[str, Any]:
    """Return the object in a state file of this version; BadState for others and other features."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise BadState(f"cannot be read: {error}") from error
    if not isinstance(found, dict) or whole_number(found.get("version")) is None:
        raise BadState("cannot be read: not a JSON object with a version")
    version, has = found["version"], found.get("features") or []
    if version != STATE_VERSION or not _all_in(has, features):
        raise NewerState(f"version {version}, features {has}: not of this version")
    return found


def state_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a state file without features."""
    # No indent: with one, json encodes in Python, twenty times as slowly.
    return json.dumps({"version": STATE_VERSION, "features": [], **content}).encode()


def _all_in(has: Any, features: Container[str]) -> bool:
    return isinstance(has, list) and all(isinstance(f, str) and f in features for f in has)
