"""The names of a store's topics by their ids, for readers of the ring: its frames have ids.

Guards: nothing. One thread uses an object at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.record.names import parse_store_key
from tubestore.record.state_files import read_topics


class TopicNames:
    """Names of topics by their ids; taken from the state files when these have changed."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        """Begin without a name."""
        self._vfs, self._own = vfs, join(root, OWN_DIRECTORY)
        #: The state files as they were read last, by name.
        self._files: dict[str, bytes] = {}
        self._names: Mapping[int, str] = {}
        self._ids: Mapping[str, int] = {}

    def read(self) -> Mapping[int, str]:
        """Return the names as they are now: the same mapping while there is no change.

        BadState if they cannot be read.
        """
        try:
            if self._files and all(self._content(n) == data for n, data in self._files.items()):
                return self._names
        except FileNotFoundError:
            pass  # the log of changes begins anew
        files: dict[str, bytes] = {}

        def noted(name: str) -> bytes:
            files[name] = self._content(name)
            return files[name]

        try:
            saved = read_topics(noted)
        except FileNotFoundError:
            self._files, self._names, self._ids = {}, {}, {}
            return self._names
        names = {options.id: name for name, options in saved.settings.items() if options.id}
        self._files, self._names = files, names
        self._ids = {name: topic_id for topic_id, name in names.items()}
        return names

    def ids_of(self, shards: Collection[str]) -> set[tuple[int, int]]:
        """Return topic id and store of some shards, by the names as they were read last.

        Shards of topics without an id are in no ring.
        """
        keys = [key for key in map(parse_store_key, shards) if key is not None]
        return {(self._ids[topic], store_id) for topic, store_id in keys if topic in self._ids}

    def _content(self, name: str) -> bytes:
        return self._vfs.read_file(join(self._own, name))
