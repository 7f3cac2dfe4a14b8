"""The content of a broker's `config/*.json`, its source, and what is wrong with it, for display.

A broker keeps the previous content in `<name>.bak`. It reads that when the file is missing, empty
or broken, and so does this. `broker_config.py` has the form, and writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rocketcompat.files.broker_config import loads
from rocketcompat.formats import CONFIG_DIRECTORY
from tubestore.core.vfs import Vfs

BACKUP_SUFFIX = ".bak"
#: Between a topic and a group in `consumerOffset.json`.
_TOPIC_GROUP = "@"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file's content, the file it was read from, and what is wrong with the file itself."""

    path: str
    content: dict[str, Any] | None
    from_backup: bool = False
    problem: str | None = None


def parse_config(text: str) -> dict[str, Any]:
    """Return the object in a file; ValueError if there is none.

    >>> parse_config('{"offsetTable":{"T@g":{0:250,1:-1}}}')
    {'offsetTable': {'T@g': {'0': 250, '1': -1}}}
    """
    try:
        content = loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def read_config(vfs: Vfs, root: str, name: str) -> ConfigFile:
    """Read `config/<name>.json` of a store, or its backup, as a broker does."""
    path = os.path.join(root, CONFIG_DIRECTORY, f"{name}.json")
    content, problem = _read(vfs, path)
    if content is not None:
        return ConfigFile(path, content)
    content, _ = _read(vfs, path + BACKUP_SUFFIX)
    return ConfigFile(path, content, content is not None, problem)


def config_names(vfs: Vfs, root: str) -> list[str]:
    """Return the names of the files that are there, or that have left a backup; sorted."""
    names = set()
    for name, is_directory, _ in vfs.entries(os.path.join(root, CONFIG_DIRECTORY)):
        plain = name.removesuffix(BACKUP_SUFFIX)
        if not is_directory and plain.endswith(".json"):
            names.add(plain.removesuffix(".json"))
    return sorted(names)


def consumer_offsets(content: dict[str, Any]) -> dict[tuple[str, str, int], int]:
    """Return (topic, group, queue id) → next offset of a `consumerOffset.json`."""
    found = {}
    table = content.get("offsetTable")
    for name, offsets in (table if isinstance(table, dict) else {}).items():
        topic, _, group = name.rpartition(_TOPIC_GROUP)
        for queue_id, offset in (offsets if isinstance(offsets, dict) else {}).items():
            if topic and isinstance(offset, int) and queue_id.lstrip("-").isdecimal():
                found[topic, group, int(queue_id)] = offset
    return found


def bad_offsets(content: dict[str, Any]) -> list[str]:
    """Return the names in a `consumerOffset.json` that `consumer_offsets` passes over."""
    table = content.get("offsetTable")
    if not isinstance(table, dict):
        return [] if table is None and not content else ["offsetTable"]
    bad = [name for name, offsets in table.items() if not isinstance(offsets, dict)]
    known = {(f"{topic}{_TOPIC_GROUP}{group}", queue_id) for topic, group, queue_id in
             consumer_offsets(content)}  # fmt: skip
    for name, offsets in table.items():
        bad += [
            f"{name}/{queue_id}"
            for queue_id in (offsets if isinstance(offsets, dict) else ())
            if not queue_id.lstrip("-").isdecimal() or (name, int(queue_id)) not in known
        ]
    return bad


def _read(vfs: Vfs, path: str) -> tuple[dict[str, Any] | None, str | None]:
    try:
        raw = vfs.read_file(path)
    except FileNotFoundError:
        return None, "missing"
    if not raw.strip(b"\0 \t\r\n"):
        return None, "empty"
    try:
        return parse_config(raw.decode("utf-8")), None
    except ValueError as error:
        return None, f"no JSON: {error}"
