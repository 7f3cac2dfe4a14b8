"""How far `check` and `repair` are: bytes that were read, of all that will be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.inspection import Stretch
from tubestore.segments.listing import ShardFiles

#: Gets the bytes that are read, and all of them.
Watch = Callable[[int, int], None]


class BytesRead:
    """Counts the bytes of shards as they are read, and reports them.

    A shard is read entry by entry with the records; its sealed files are read once more for their
    digests. The count never goes back, and each shard ends at its whole size, whatever its damage.
    """

    def __init__(self, shards: Iterable[ShardFiles] = (), watch: Watch | None = None) -> None:
        self._watch = watch or (lambda _done, _total: None)
        self._total = sum(map(_to_read, shards))
        #: Where the count of the current shard is, and ends.
        self._done = self._end = 0

    def begin(self, shard: ShardFiles) -> None:
        """Begin with the next shard; the one before is read."""
        self._done, self._end = self._end, self._end + _to_read(shard)
        self._report()

    def finish(self) -> None:
        """Report the end of the last shard."""
        self._done = self._end
        self._report()

    def add(self, size: int) -> None:
        """Count bytes of the current shard."""
        if size > 0:
            self._done = min(self._done + size, self._end)
            self._report()

    def walked(self, shard: ShardFiles, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
        """Pass the stretches of a walk on, and count the entries and data that each moves past."""
        index = shard.index[0].start if shard.index else 0
        data = shard.data[0].start if shard.data else 0
        for found in stretches:
            index_end = found.index_offset + ENTRY_SIZE * len(found.entries)
            # Without data the offset is what a damaged entry has, and can be anything.
            data_end = found.data_offset + found.data_size if found.data_size else data
            self.add(max(index_end - index, 0) + max(data_end - data, 0))
            index, data = max(index, index_end), max(data, data_end)
            yield found

    def _report(self) -> None:
        self._watch(self._done, self._total)


def _to_read(shard: ShardFiles) -> int:
    """Return the bytes of a shard's files, those of its sealed files twice."""
    streams = (shard.index, shard.data)
    return sum(file.size for files in streams for file in (*files, *files[:-1]))
