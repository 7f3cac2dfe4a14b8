"""Whom a batch over many topics is for: names become codes, and codes topics and their shards.

Batches that name the same topics come one after the other. What was found for the last one is
kept and compared by its names, in one go, instead of looked up name by name.

Guards: `_known` is replaced whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.journal.chosen_shards import ChosenShards, ShardTable
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record import ingest
from tubestore.record.names import store_key
from tubestore.shard.message_store import MessageStore
from tubestore.store.topic import Topic
from tubestore.store.topics import TopicRegistry

Array = np.ndarray[Any, Any]
#: Names are looked up among those that are known unless these are so many times more.
_KNOWN_PER_ROW = 4


class Addressees:
    """Some topics by code, with what a batch asks of them in columns."""

    def __init__(self, names: pa.Array, topics: list[Topic], version: int) -> None:
        self.names, self.topics, self.version = names, topics, version
        #: Partitions in each store, and stores, of each topic.
        self.partitions = np.array([t.options.partitions for t in topics], np.int64)
        self.stores = np.array([t.options.stores for t in topics], np.int64)
        self._first_places = np.concatenate(([0], np.cumsum(self.stores)))
        shards = [store_key(t.name, n) for t in topics for n in range(t.options.stores)]
        self._table = ShardTable(shards, self._find)

    def _find(self, place: int) -> MessageStore:
        code = int(self._first_places.searchsorted(place, "right")) - 1
        return self.topics[code].writable(place - int(self._first_places[code]))

    def shards(self, keys: Array) -> ChosenShards:
        """Return the shards with these keys: topic code * 10,000 + store id."""
        codes, store_ids = np.divmod(keys, PARTITIONS_PER_STORE)
        return ChosenShards(self._table, self._first_places[codes] + store_ids)


class AddressBook:
    """Finds the topics of tables; keeps the last ones."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics
        self._known: Addressees | None = None

    def of(self, table: pa.Table) -> tuple[Addressees, Array]:
        """Return the topics in the column `topic`, and for each row its code among them (int64).

        InvalidMessage, UnknownTopic.
        """
        version = self._topics.version
        known = self._known if self._known and self._known.version == version else None
        names = ingest.column(table, "topic")
        if names is not None and pa.types.is_dictionary(names.type) and not names.null_count:
            found = self._of_dictionary(names.dictionary, known, version)
            if found is not None:
                return found, names.indices.to_numpy().astype(np.int64)
        if known is not None and names is not None and names.type == known.names.type:
            places = _places(names, known)
            if places is not None:
                return known, places
        texts, codes = ingest.split_topics(table)
        places = _places(pa.array(texts, known.names.type), known) if known is not None else None
        if known is not None and places is not None:
            return known, places[codes]
        topics = dict(zip(texts, self._topics.get_all(texts), strict=True))
        # Those of the last batches as well: the next one may have some of each.
        if known is not None and len(known.topics) < _KNOWN_PER_ROW * len(codes):
            for topic in known.topics:
                topics.setdefault(topic.name, topic)
        kind = pa.large_string() if _is_large(names) else pa.string()
        self._known = Addressees(pa.array(list(topics), kind), list(topics.values()), version)
        return self._known, codes

    def _of_dictionary(
        self, dictionary: pa.Array, known: Addressees | None, version: int
    ) -> Addressees | None:
        """Return whom all values of a dictionary mean; None if some mean nobody, or the same."""
        if known is not None and dictionary.equals(known.names):
            return known
        if not (pa.types.is_string(dictionary.type) or _is_large(dictionary)):
            return None
        texts = dictionary.to_pylist()
        if len(set(texts)) < len(texts) or not all(name in self._topics for name in texts):
            return None
        # Not the array itself: it may be a small part of what it holds.
        names = pa.array(texts, dictionary.type)
        self._known = Addressees(names, self._topics.get_all(texts), version)
        return self._known


def _places(names: pa.Array, known: Addressees) -> Array | None:
    """Return the codes of some names; None if one of them is new, or looking costs too much."""
    if names.null_count or len(known.names) > _KNOWN_PER_ROW * len(names):
        return None
    places = pc.index_in(names, value_set=known.names)
    return None if places.null_count else places.to_numpy().astype(np.int64)


def _is_large(names: pa.Array | None) -> bool:
    return names is not None and pa.types.is_large_string(names.type)
