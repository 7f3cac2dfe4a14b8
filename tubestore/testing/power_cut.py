"""What a power cut leaves of a disk.

What we assume of disk and system (ext4, XFS and their like, on a drive that honours a flush):

1. What a returned `sync` covers is kept: data and length of that file.
2. Data and length are independent until then: any subset of the unsynced writes may have
   reached the disk in any order, under any length that the file had meanwhile; bytes that
   the length covers and no write reached are as they were, or zeros where there were none.
3. A sector of 512 bytes is written whole. We cut inside one all the same, for one write
   of a file: a store with checksums has no need of this assumption.
4. Changes to one directory become durable in the order in which they were made, all at
   the latest when that directory is synced. Different directories are independent.
5. A rename is atomic: a name shows the old file or the new one. It does not cover the
   new file's data, which must have been synced before.
6. Syncing a file does not make its name durable: it may be gone after a power cut.
7. A file is gone if its directory did not survive, synced or not.
8. A file's time of modification is that of its last sync, or of its last write.
9. What was durable before and was not written to since does not change.
"""

from __future__ import annotations

from random import Random

from tubestore.testing.calls import Call
from tubestore.testing.disk import (
    DIRECTORY,
    SECTOR,
    Change,
    Content,
    Disk,
    DiskFile,
    NameChange,
    apply_name,
    reachable,
)


def power_cut(disk: Disk, random: Random, variant: int, boot_id: str) -> Disk:
    """Return the disk that the next boot finds.

    The first four variants are always the same: nothing unsynced survives; everything; all
    data under old names; all names without data. In the others files and directories are
    drawn one by one.
    """
    cut = _Cut(random, variant)
    names = dict(disk.durable_names)
    for call in cut.surviving_names(disk.name_changes):
        apply_name(names, call)
    names = reachable(names)
    files = {}
    for number in names.values():
        if number != DIRECTORY:
            file = disk.files[number]
            files[number] = cut.surviving_file(file) if file.changes else file
    after = Disk.of_names(names, files, boot_id)
    after.last_number = disk.last_number
    return after


class _Cut:
    """Chooses what survives, by one generator."""

    def __init__(self, random: Random, variant: int) -> None:
        self._random, self._variant = random, variant
        #: How often a dirty file meets a fate of its own, and what the others meet.
        self._strange = random.choice((0.15, 0.5, 1.0))
        self._keep_others = random.random() < 0.5
        #: The same for names; most are kept, since of a file that is gone nothing is learned.
        self._strange_names = random.choice((0.0, 0.15, 0.5))
        self._keep_names = random.random() < 0.75

    def surviving_names(self, changes: tuple[NameChange, ...]) -> list[Call]:
        """Return the calls that survive: of each directory's the first few."""
        if self._variant in (1, 3) or not changes:
            return [change.call for change in changes]
        if self._variant in (0, 2):
            return []
        left = self._names_left(changes)
        stopped: set[str] = set()
        survivors = []
        for change in changes:
            for directory in change.directories:
                left[directory] -= 1
                if left[directory] < 0:
                    stopped.add(directory)
            if stopped.isdisjoint(change.directories):
                survivors.append(change.call)
            else:
                stopped.update(change.directories)
        return survivors

    def _names_left(self, changes: tuple[NameChange, ...]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for change in changes:
            for directory in change.directories:
                counts[directory] = counts.get(directory, 0) + 1
        random = self._random
        for directory, count in counts.items():
            if random.random() < self._strange_names:
                counts[directory] = random.randint(0, count)
            elif not self._keep_names:
                counts[directory] = 0
        return counts

    def surviving_file(self, file: DiskFile) -> DiskFile:
        """Return what is left of a file with unsynced changes, and one of its two times."""
        latest = self._variant in (1, 2) or self._random.random() < 0.5
        return DiskFile(self.survivor(file), (), file.modified_ms if latest else file.durable_ms)

    def survivor(self, file: DiskFile) -> Content:
        """Return what is left of a file with unsynced changes."""
        if self._variant in (0, 3):
            return file.durable
        if self._variant in (1, 2):
            return file.cached
        random = self._random
        if random.random() >= self._strange:
            return file.cached if self._keep_others else file.durable
        fates = (
            _in_order,
            _torn,
            _torn,
            _any_writes,
            _any_writes,
            _any_sectors,
            _lost_sector,
            _only_length,
        )
        return random.choice(fates)(file, random)


def _in_order(file: DiskFile, random: Random) -> Content:
    """The first few changes."""
    count = random.randint(0, len(file.changes))
    return file.changes[count - 1].after if count else file.durable


def _torn(file: DiskFile, random: Random) -> Content:
    """The first few changes, and the one after them in part (3)."""
    count = random.randrange(len(file.changes))
    before = file.changes[count - 1].after if count else file.durable
    change = file.changes[count]
    if change.call.kind == "truncate" or not change.call.data:
        return before
    return torn(before, change, random)


def torn(before: Content, change: Change, random: Random) -> Content:
    """Return a content to which one write came in part, with the old length or the new one."""
    data, position = change.call.data, change.call.position
    if random.random() < 0.5:
        kept = random.randrange(len(data))
    else:  # up to a border of sectors
        end = position + len(data)
        first = position // SECTOR + 1
        border = SECTOR * random.randint(first, max(first, end // SECTOR))
        kept = min(len(data), max(0, border - position))
    after = before.written(data[:kept], position) if kept else before
    if random.random() < 0.5:
        after = after.resized(max(after.size, change.after.size))
    return after


def _any_writes(file: DiskFile, random: Random) -> Content:
    """Any subset of the changes, the last of it perhaps torn, under any length (2)."""
    keep = random.choice((0.2, 0.5, 0.9))
    content = file.durable
    for change in file.changes:
        if random.random() < keep:
            content = change.apply(content)
        elif random.random() < 0.1 and change.call.data:
            content = torn(content, change, random)
    return content.resized(_length(file, random))


def _any_sectors(file: DiskFile, random: Random) -> Content:
    """Each sector as it was at any moment since the last sync, under any length (2, 3)."""
    versions = [file.durable, *(change.after for change in file.changes)]
    size = _length(file, random)
    longest = max(len(v.data) for v in versions)
    sectors = range(-(-min(longest, size) // SECTOR))
    parts = [random.choice(versions).sector(number) for number in sectors]
    return Content(b"".join(parts)[:size], size)


def _lost_sector(file: DiskFile, random: Random) -> Content:
    """Everything but one sector: what only a checksum over all of a record notices (2, 3)."""
    old, new = file.durable, file.cached
    dirty = [n for n in range(-(-len(new.data) // SECTOR)) if old.sector(n) != new.sector(n)]
    if not dirty:
        return new
    place = random.choice(dirty) * SECTOR
    return new.written(old.sector(place // SECTOR), place).resized(new.size)


def _only_length(file: DiskFile, random: Random) -> Content:
    """The old data under another length: a hole, or a tail that is gone."""
    return file.durable.resized(_length(file, random))


def _length(file: DiskFile, random: Random) -> int:
    lengths = {file.durable.size, *(change.after.size for change in file.changes)}
    if random.random() < 0.5:
        return file.cached.size
    return random.choice(sorted(lengths))
