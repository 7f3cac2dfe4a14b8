"""The note that a root is a mirror: which master its log comes from.

While it is there only what follows the master writes the log: a message of another writer would
take the place of one of the master's.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rocketcompat.formats import MIRROR_FILE, OWN_DIRECTORY
from tubestore.core.state_file import parse_json
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore

FORMAT = 1


class MirrorFile:
    """Reads, writes and removes the note."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._vfs, self._root = vfs, root
        self._directory = os.path.join(root, OWN_DIRECTORY)
        self.path = os.path.join(self._directory, MIRROR_FILE)

    def read(self) -> str | None:
        """Return the master's address; None if the root is not a mirror.

        NotAStore for a note that cannot be read: its root is not written on a guess.
        """
        if not self._vfs.exists(self.path):
            return None
        try:
            content: Any = parse_json(self._vfs.read_file(self.path))
            number, master = content["format"], content["master"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotAStore(self._root, f"its {MIRROR_FILE} is not valid: {error}") from error
        if number != FORMAT or not isinstance(master, str):
            raise NotAStore(self._root, f"its {MIRROR_FILE} was written by a newer version")
        return master

    def write(self, master: str) -> None:
        """Write the note, durably; nothing if it is there."""
        if self._vfs.exists(self.path) and self.read() == master:
            return
        if not self._vfs.exists(self._directory):
            self._vfs.make_directories(self._directory)
            self._vfs.sync_directory(self._root)
        raw = json.dumps({"format": FORMAT, "master": master}).encode()
        self._vfs.replace_file(self.path, raw, sync=True)

    def remove(self) -> None:
        """Remove the note, durably: the store is its own from here on."""
        self._vfs.remove(self.path)
        self._vfs.sync_directory(self._directory)
