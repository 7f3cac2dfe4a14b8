"""Repair one shard: names, gaps, torn tails, its index.

| action | what is done |
| --- | --- |
| `quarantine_file` | a file that no broker opens, or that overlaps another, is taken out |
| `move_file` | a data file that is at another one's place gets the name that its records ask for |
| `fill_gap` | a data file that is gone is replaced by zeros: what lies behind it keeps its place |
| `cut_data` | bytes behind the last intact record go, whole files too |
| `rewrite_index` | entries are written from their records, entries of lost records go; a new file |
| `create_index` | the same, where there is no file |
| `remove_index` | an index file behind the end |
| `rename` | a segment gets the 20 digits of its start as its name |
| `remove_cache` | a cache that describes other files |
| `leave` | nothing mends it: damage with something intact behind it stays, isolated |

Each step leaves a shard from which the next run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os.path import basename, dirname

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.quarantine import Action, Quarantine
from tubestore.core.vfs import Vfs
from tubestore.offline.bytes_read import BytesRead
from tubestore.offline.digest_check import check_digests
from tubestore.offline.findings import Finding
from tubestore.offline.index_rebuild import IndexRebuild, NewIndexFile
from tubestore.offline.own_files import check_checkpoint, check_files, hidden_of
from tubestore.offline.sound_rows import Kept, sound_rows
from tubestore.record.names import (
    CHECKPOINT_FILE,
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    MOVING_SUFFIX,
    REPAIR_SUFFIX,
    SHARDS_FILE,
    parse_segment_name,
    segment_name,
)
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import Bounds
from tubestore.segments.cache_formats import Checkpoint
from tubestore.segments.checkpoint import Recorded, foreign, joined, read_recorded
from tubestore.segments.digests import digests_path, drop_digests
from tubestore.segments.inspection import Reason, Stretch
from tubestore.segments.listing import ShardFiles, StoredFile, chained, list_shard
from tubestore.segments.lost_files import index_path, write_first_index
from tubestore.segments.shard_bytes import ShardBytes

_COPY_BYTES = 8 << 20


class ShardRepair:
    """Repairs a shard as it was listed; without `quarantine` it only yields the plan."""

    def __init__(
        self,
        vfs: Vfs,
        shard: ShardFiles,
        quarantine: Quarantine | None,
        outside: Bounds | None,
        read: BytesRead,
    ) -> None:
        """`outside` is what the store records of the shard outside of its directory."""
        self._vfs, self._listed, self._quarantine = vfs, shard, quarantine
        self._outside, self._read = outside, read
        self._index_directory = join(shard.directory, INDEX_DIRECTORY)
        #: Files that are moved, by their names before.
        self._homes: set[str] = set()

    def run(self) -> Iterator[Action]:
        """Do, or only yield, everything in its order."""
        vfs, shard = self._vfs, self._listed
        if self._quarantine is not None:
            self._remove_leftovers()
        moved = list(self._put_in_place())
        yield from moved
        shard = self._listed
        known = read_recorded(vfs, shard.directory)
        trouble = foreign(shard.directory, known.checkpoint)
        found = joined(known.checkpoint if trouble is None else None, self._outside)
        missing = [f for f in check_files(vfs, shard, found) if f.reason is Reason.MISSING_FILE]
        made = list(self._make_first_index(found))
        yield from made
        if made and self._quarantine is not None:
            shard = self._listed = list_shard(
                vfs, dirname(shard.directory), shard.topic, shard.store_id
            )
        for finding in missing:
            if finding.path not in {action.path for action in made}:
                yield Action(finding.path, "leave", finding.position, 0, finding.message)
        index, other_index = chained(shard.index)
        data, other_data = chained(shard.data)
        shard = replace(shard, index=index, data=data)
        for path, size in (*shard.strays, *((f.path, f.size) for f in (*other_index, *other_data))):
            text = "a name or a place that no other file leaves room for"
            yield self._take_out(path, "quarantine_file", size, text)
        digests = list(check_digests(vfs, shard, self._read))
        misplaced = [f for f in index if (f.start - index[0].start) % ENTRY_SIZE]
        if misplaced:
            text = f"it starts at {misplaced[0].start}, inside an entry; the index stays as it is"
            yield Action(misplaced[0].path, "leave", 0, 0, text)
            return
        kept = Kept()
        rebuild = IndexRebuild(vfs, shard, write=self._quarantine is not None)
        for offset, entries in sound_rows(vfs, shard, kept, self._read):
            rebuild.put(offset, entries)
        new, surplus = rebuild.finish(kept.index_end)
        done = [
            *self._fill_gaps(shard, kept.data_end),
            *self._cut_data(shard, kept.data_end),
            *self._replace_index(new, surplus, kept.index_end),
            *self._rename(shard),
        ]
        yield from done
        replaced = {action.path for action in done}
        digests = [f for f in digests if f.path not in replaced]
        # A cache with an end behind the files keeps offsets from being given twice.
        lost_end = self._lost_end(known.checkpoint if trouble is None else None, kept)
        ends_before = any(f.at_end for f in missing) or lost_end is not None
        changed = bool(done or self._homes) and not ends_before
        yield from self._remove_caches(known, digests, changed=changed, kept=lost_end)
        if lost_end is not None:
            yield lost_end
        for stretch in kept.damage:
            yield self._left(shard, stretch)
        for finding in digests:
            if finding.reason is Reason.DIGEST_DIFFERS:
                yield Action(finding.path, "leave", finding.position, 0, finding.message)

    # -- what is done ------------------------------------------------------------------------

    def _put_in_place(self) -> Iterator[Action]:
        """Move data files that are at another one's place; those without one are taken out."""
        shard = self._listed
        bytes_ = ShardBytes(self._vfs, shard)
        places, misplaced = bytes_.places, bytes_.misplaced
        taken = {file.start for file in shard.data if file not in misplaced}
        homes: dict[str, int] = {}
        for file, (own, text) in misplaced.items():
            home = places.home_of(bytes_.piece(file), own)
            if home is None or home in taken:
                yield self._take_out(file.path, "quarantine_file", file.size, text)
            else:
                homes[file.path] = home
                taken.add(home)
        bytes_.close()
        if self._quarantine is not None:
            self._move(homes)
        for file in misplaced:
            if file.path in homes:
                text = f"to {segment_name(homes[file.path], DATA_SUFFIX)}: its records belong there"
                yield Action(file.path, "move_file", 0, file.size, text)
        if self._quarantine is not None:
            self._listed = list_shard(
                self._vfs, dirname(shard.directory), shard.topic, shard.store_id
            )
        elif misplaced:
            kept = (f for f in shard.data if f not in misplaced or f.path in homes)
            data = [f._replace(start=homes.get(f.path, f.start)) for f in kept]
            self._listed = replace(shard, data=tuple(sorted(data, key=lambda f: f.start)))
        self._homes = set(homes)

    def _move(self, homes: dict[str, int]) -> None:
        """Rename data files to the offsets where they belong; no name is overwritten."""
        directory = self._listed.directory
        names = [name for name, _, _ in self._vfs.entries(directory)]
        going = {  # first those that an interrupted run was about to move
            join(directory, name): join(directory, name.removesuffix(MOVING_SUFFIX))
            for name in names
            if name.endswith(DATA_SUFFIX + MOVING_SUFFIX)
        }
        for path, home in homes.items():
            going[path] = join(directory, segment_name(home, DATA_SUFFIX))
        for path, target in going.items():
            for name in (path, target):
                if (start := parse_segment_name(basename(name), DATA_SUFFIX)) is not None:
                    drop_digests(self._vfs, digests_path(name, start))
        while going:
            # One with a free place; else one that makes a place free.
            path = min(going, key=lambda p: (self._vfs.exists(going[p]), p not in homes))
            target = going.pop(path)
            if not self._vfs.exists(target):
                self._put(path, target)
            elif path in homes:
                self._put(path, target + MOVING_SUFFIX)
                going[target + MOVING_SUFFIX] = target
            elif self._quarantine is not None:  # another file has come to its place
                self._quarantine.move(path)

    def _remove_leftovers(self) -> None:
        """Remove files that an interrupted run has written and not put into their place."""
        for directory in (self._listed.directory, self._index_directory):
            for name, is_directory, _ in self._vfs.entries(directory):
                if not is_directory and name.endswith(REPAIR_SUFFIX):
                    self._vfs.remove(join(directory, name))

    def _make_first_index(self, found: Checkpoint | None) -> Iterator[Action]:
        """Make an index file that is missing at the beginning from the records."""
        shard = self._listed
        entries, whole = hidden_of(self._vfs, shard, found)
        if whole:
            size = ENTRY_SIZE * len(entries)
            start = shard.index[0].start - size
            if self._quarantine is not None:
                write_first_index(self._vfs, shard.directory, start, entries)
            text = f"no index file had the entries of {len(entries)} records"
            yield Action(index_path(shard.directory, start), "create_index", 0, size, text)

    def _take_out(self, path: str, action: str, size: int, text: str) -> Action:
        if self._quarantine is not None:
            self._quarantine.move(path)
        return Action(path, action, 0, size, text)

    def _fill_gaps(self, shard: ShardFiles, end: int) -> Iterator[Action]:
        last = 0
        for number, file in enumerate(shard.data):
            if number and last < file.start < end:
                path = join(shard.directory, segment_name(last, DATA_SUFFIX))
                size = file.start - last
                if self._quarantine is not None:
                    self._write_zeros(path, last, size)
                yield Action(path, "fill_gap", 0, size, f"no file had the data from {last} on")
            last = file.end

    def _write_zeros(self, path: str, start: int, size: int) -> None:
        new = self._vfs.open(path + REPAIR_SUFFIX, create=True)
        new.truncate(size)
        new.sync()
        new.close()
        self._replace(path + REPAIR_SUFFIX, path, start)

    def _replace(self, new: str, path: str, start: int) -> None:
        """Put a new file into its place; facts about the old one are dropped first."""
        drop_digests(self._vfs, digests_path(path, start))
        self._put(new, path)

    def _put(self, new: str, path: str) -> None:
        self._vfs.rename(new, path)
        self._vfs.sync_directory(dirname(path))

    def _cut_data(self, shard: ShardFiles, end: int) -> Iterator[Action]:
        sizes = {file.path: file.size for file in self._listed.data}
        for file in reversed(shard.data):
            if file.start > end or (file.start == end and file is not shard.data[0]):
                if file.size or file.start > end:
                    text = "a whole file behind the last intact record"
                    yield self._take_out(file.path, "cut_data", file.size, text)
            elif file.end > end or file.size < sizes[file.path]:
                kept = min(end, file.end) - file.start
                if self._quarantine is not None:
                    self._quarantine.copy(file.path, kept)
                    self._shorten(file, kept)
                text = "bytes behind the last intact record"
                if kept == file.size:
                    text = "bytes that lie over the file that follows"
                yield Action(file.path, "cut_data", kept, sizes[file.path] - kept, text)

    def _shorten(self, file: StoredFile, size: int) -> None:
        path = file.path
        old = self._vfs.open(path, writable=False)
        new = self._vfs.open(path + REPAIR_SUFFIX, create=True)
        for position in range(0, size, _COPY_BYTES):
            new.pwrite(old.pread(min(_COPY_BYTES, size - position), position), position)
        new.sync()
        new.close()
        old.close()
        self._replace(path + REPAIR_SUFFIX, path, file.start)

    def _replace_index(
        self, changed: list[NewIndexFile], surplus: list[StoredFile], end: int
    ) -> Iterator[Action]:
        for file in reversed(surplus):
            if file.size or file.start > end:
                text = "its entries have no records, and nothing intact follows"
                yield self._take_out(file.path, "remove_index", file.size, text)
        for new in changed:
            if new.written:
                if new.old is not None and self._quarantine is not None:
                    self._quarantine.copy(new.final)
                self._replace(new.written, new.final, new.start)
            before = new.before
            entries = f"{new.changed // ENTRY_SIZE} entries are written anew"
            cut = f"{before - new.size} bytes without records go" if before > new.size else ""
            text = "; ".join(part for part in (entries if new.changed else "", cut) if part)
            action = "create_index" if new.old is None else "rewrite_index"
            size = new.changed or before - new.size
            yield Action(new.final, action, new.position, size, text)

    def _rename(self, shard: ShardFiles) -> Iterator[Action]:
        for files, suffix in ((shard.index, INDEX_SUFFIX), (shard.data, DATA_SUFFIX)):
            for file in files:
                name = segment_name(file.start, suffix)
                target = join(dirname(file.path), name)
                if file.final or target == file.path or not self._vfs.exists(file.path):
                    continue
                if file.path in self._homes:
                    continue  # it has its action
                if self._quarantine is not None:
                    self._put(file.path, target)
                yield Action(file.path, "rename", 0, file.size, f"to {name}")

    def _lost_end(self, found: Checkpoint | None, kept: Kept) -> Action | None:
        """Return what is left to the next opening where messages at the end are lost; else None.

        They are recorded: opening keeps their offsets, which are given to no other message.
        """
        directory, outside = self._listed.directory, self._outside
        end = found.index_end if found is not None and found.digest else 0
        path = join(directory, OWN_DIRECTORY, CHECKPOINT_FILE)
        if outside is not None and outside.index_end > end:
            end, path = outside.index_end, join(dirname(directory), OWN_DIRECTORY, SHARDS_FILE)
        if end <= kept.index_end:
            return None
        text = f"it has messages up to index offset {end}, the files end before"
        return Action(path, "leave", 0, 0, f"{text}; opening for writing keeps their places")

    def _remove_caches(
        self, known: Recorded, digests: list[Finding], *, changed: bool, kept: Action | None
    ) -> Iterator[Action]:
        own = join(self._listed.directory, OWN_DIRECTORY)
        stale = {f.path: f.message for f in check_checkpoint(self._vfs, self._listed, known)}
        stale |= {f.path: f.message for f in digests if f.reason is Reason.STALE_CACHE}
        checkpoint = join(own, CHECKPOINT_FILE)
        if (trouble := foreign(self._listed.directory, known.checkpoint)) is not None:
            stale[checkpoint] = trouble
        if changed and self._vfs.exists(checkpoint):
            stale[checkpoint] = "it describes the files as they were"
        if kept is not None:
            stale.pop(kept.path, None)
        for path, message in stale.items():
            if self._quarantine is not None and self._vfs.exists(path):
                self._vfs.remove(path)
            yield Action(path, "remove_cache", 0, 0, message)
        if stale and self._quarantine is not None:
            self._vfs.sync_directory(own)

    @staticmethod
    def _left(shard: ShardFiles, stretch: Stretch) -> Action:
        """Return where damage is that stays."""
        place = (f for f in shard.data if f.start <= stretch.data_offset < f.end)
        file = next(place, None)
        if file is not None and stretch.data_size:
            position = stretch.data_offset - file.start
            return Action(file.path, "leave", position, stretch.data_size, stretch.message)
        holders = [f for f in shard.index if f.start <= stretch.index_offset]
        path = holders[-1].path if holders else shard.directory
        position = stretch.index_offset - holders[-1].start if holders else 0
        size = ENTRY_SIZE * len(stretch.entries)
        return Action(path, "leave", position, size, stretch.message)
