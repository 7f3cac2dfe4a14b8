"""Findings of `check` that the operator has acknowledged: known damage that stays where it is.

`<root>/.tubestore/accepted.json` names each by its file below the root, position, reason and
message. Another position or another message makes it a new finding. Both packages use it; only
`check --accept` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tubestore.core.paths import OWN_DIRECTORY, checked_root, join
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of

_FILE = "accepted.json"
_FORMAT = 1
_FIELDS = ("path", "position", "reason", "message")
Row = Mapping[str, Any]
Identity = tuple[str, int, str, str]


class AcceptedFindings:
    """The acknowledged findings of one store."""

    def __init__(self, root: str | os.PathLike[str], vfs: Vfs | None = None) -> None:
        self._root, self._vfs = checked_root(root), vfs or disk_of(root)
        self.path = join(self._root, OWN_DIRECTORY, _FILE)
        #: Why the file cannot be read; nothing counts as accepted then.
        self.problem: str | None = None
        self._known: set[Identity] = set()
        try:
            self._known = _parsed(self._vfs.read_file(self.path))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.problem = f"{self.path}: cannot be read, so nothing counts as accepted: {error}"

    def __contains__(self, row: Row) -> bool:
        return self._identity(row) in self._known

    def write(self, rows: Iterable[Row], *, keep: bool) -> int:
        """Accept these findings, durably; with `keep` also those that were accepted before.

        Returns how many are accepted now.
        """
        self._known = {*map(self._identity, rows), *(self._known if keep else ())}
        found = [dict(zip(_FIELDS, identity, strict=True)) for identity in sorted(self._known)]
        content = json.dumps({"format": _FORMAT, "findings": found}, indent=1).encode()
        directory = os.path.dirname(self.path)
        if not self._vfs.exists(directory):
            self._vfs.make_directories(directory)
            self._vfs.sync_directory(self._root)
        self._vfs.replace_file(self.path, content)
        self.problem = None
        return len(found)

    def _identity(self, row: Row) -> Identity:
        path = os.path.relpath(row["path"], self._root)
        return path, int(row["position"]), str(row["reason"]), str(row["message"])


def _parsed(raw: bytes) -> set[Identity]:
    content = json.loads(raw)
    if content["format"] != _FORMAT:
        raise ValueError(f"it has the format {content['format']!r}")
    return {
        (str(row["path"]), int(row["position"]), str(row["reason"]), str(row["message"]))
        for row in content["findings"]
    }
