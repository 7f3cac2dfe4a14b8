"""The names of a store's topics by their ids, for readers of the ring: its frames have ids.

Guards: nothing. One thread uses an object at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.record.names import parse_store_key
from tubestore.record.state_files import SavedTopics, TopicFiles


class TopicNames:
    """Names of topics by their ids; taken from the state files when these have changed."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        """Begin without a name."""
        own = join(root, OWN_DIRECTORY)
        self._files = TopicFiles(lambda name: vfs.read_file(join(own, name)))
        self._saved: SavedTopics | None = None
        self._names: Mapping[int, str] = {}
        self._ids: Mapping[str, int] = {}

    def read(self) -> Mapping[int, str]:
        """Return the names as they are now: the same mapping while there is no change.

        BadState if they cannot be read.
        """
        try:
            saved = self._files.read()
        except FileNotFoundError:
            saved = SavedTopics({}, set())
        if saved is not self._saved:
            ids = {name: options.id for name, options in saved.settings.items() if options.id}
            names = {topic_id: name for name, topic_id in ids.items()}
            self._saved, self._names, self._ids = saved, names, ids
        return self._names

    def ids_of(self, shards: Collection[str]) -> set[tuple[int, int]]:
        """Return topic id and store of some shards, by the names as they were read last.

        Shards of topics without an id are in no ring.
        """
        keys = [key for key in map(parse_store_key, shards) if key is not None]
        return {(self._ids[topic], store_id) for topic, store_id in keys if topic in self._ids}
