"""Checks a store's own files: state files, jobs that are half published, caches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from os.path import basename, dirname
from typing import Any

import xxhash

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.state_file import BadState
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, NotAStore
from tubestore.groups.directory import OUTPUT_FILE, list_groups
from tubestore.groups.positions_log import PositionsLog
from tubestore.groups.settings import read_settings
from tubestore.journal.lacking import lacking, stray_ring
from tubestore.journal.ring_reading import LeftRing, read_ring
from tubestore.journal.root_journal import LeftJournal, read_journal
from tubestore.offline.findings import Finding
from tubestore.record.names import (
    CHECKPOINT_FILE,
    GROUPS_DIRECTORY,
    JOBS_FILE,
    JOURNAL_FILE,
    PUBLISHED_FILE,
    SHARDS_FILE,
    TOPICS_FILE,
    parse_store_key,
)
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import (
    MISSING_TOPICS,
    Bounds,
    bounds_of,
    has_topics,
    parse_shards,
    read_topics,
    state_trouble,
)
from tubestore.segments.cache_formats import (
    CHECKPOINT_DIGEST_BYTES,
    NEVER_SYNCED,
    Checkpoint,
)
from tubestore.segments.checkpoint import Recorded, foreign
from tubestore.segments.inspection import Reason
from tubestore.segments.listing import ShardFiles, StoredFile, lost_state
from tubestore.segments.lost_files import (
    hidden_entries,
    hidden_text,
    may_be_missing,
    missing_begin,
    missing_directory,
    surplus_shard,
)
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.roll_forward import places_of


def check_state(vfs: Vfs, root: str, is_written: Callable[[], bool]) -> Iterator[Finding]:
    """Check the files that a store cannot be opened without, and unfinished jobs."""
    lost = lost_state(vfs, root)
    if lost is not None:
        yield Finding(lost.path, 0, Reason.MISSING_FILE, lost.reason)
    for name in (STORE_FILE, TOPICS_FILE, PUBLISHED_FILE, JOBS_FILE):
        path = join(root, OWN_DIRECTORY, name)
        trouble = trouble_of(vfs, path)
        if trouble is not None:
            path = join(dirname(path), trouble.name or name)
            yield Finding(path, trouble.position, Reason.BAD_STATE, str(trouble))
    try:
        CommitRecords(vfs, root).ids()
    except (NotAStore, OSError) as error:
        path = join(root, OWN_DIRECTORY, JOBS_FILE)
        if trouble_of(vfs, path) is None:  # else it is reported
            yield Finding(path, 0, Reason.BAD_STATE, str(error))
    yield from _check_job(vfs, root, is_written)
    yield from _check_journal(vfs, root, is_written)
    yield from _check_groups(vfs, root, is_written)


def _check_groups(vfs: Vfs, root: str, is_written: Callable[[], bool]) -> Iterator[Finding]:
    """Report damaged settings, damaged logs of positions, and output that was not appended."""
    for group in list_groups(vfs, root):
        directory = join(root, OWN_DIRECTORY, GROUPS_DIRECTORY, group)
        log = PositionsLog(vfs, root, directory)
        with contextlib.suppress(CorruptRecord):  # it is among the problems
            log.refresh(locked=False)
        log.close()
        try:
            read_settings(vfs, directory)
        except CorruptRecord as error:
            text = f"settings of group {group!r}: {error.reason}"
            yield Finding(error.path, error.position, Reason.BAD_STATE, text)
        if log.positions.incomplete and not is_written():
            path = join(directory, OUTPUT_FILE)
            text = f"output of group {group!r} is not in its topics yet: open or recover the store"
            yield Finding(path, 0, Reason.JOURNAL, text)
        for problem in log.problems:
            text = f"positions of group {group!r}: {problem.reason}"
            yield Finding(problem.path, problem.position, Reason.BAD_STATE, text)


def trouble_of(vfs: Vfs, path: str) -> BadState | None:
    """Return what is wrong with a state file, or its log; None if valid, or not there."""
    try:
        if basename(path) == TOPICS_FILE:
            read_topics(lambda name: vfs.read_file(join(dirname(path), name)))
            return None
        return state_trouble(basename(path), vfs.read_file(path))
    except BadState as error:
        return error
    except FileNotFoundError:
        lost = basename(path) == TOPICS_FILE and _has_topics(vfs, dirname(path))
        return BadState(MISSING_TOPICS) if lost else None
    except OSError as error:
        return BadState(f"cannot be read: {error.strerror or error!r}")


def _has_topics(vfs: Vfs, own: str) -> bool:
    with contextlib.suppress(OSError):
        return has_topics(vfs.read_file(join(own, STORE_FILE)))
    return False


def _check_job(vfs: Vfs, root: str, is_written: Callable[[], bool]) -> Iterator[Finding]:
    """Report a job that is recorded and not finished, unless a writer is about to finish it."""
    records = CommitRecords(vfs, root)
    try:
        record = records.pending()
        if record is None or is_written():
            return
        path = records.path(record.number)
        places = places_of(vfs, root, record)
        if records.pending() is None:
            return  # it was finished meanwhile
    except NotAStore as error:
        if PUBLISHED_FILE not in str(error):  # reported already
            yield Finding(records.directory, 0, Reason.BAD_STATE, error.reason)
        return
    staged = sum(place.is_staged for place in places)
    text = f"job {record.job_id!r}: {staged} of {len(places)} files are not in their place yet"
    obstacle = next((place.obstacle for place in places if place.obstacle), None)
    text += f"; it cannot go on: {obstacle}" if obstacle else "; opening for writing finishes it"
    yield Finding(path, 0, Reason.HALF_PUBLISHED, text)


def _check_journal(vfs: Vfs, root: str, is_written: Callable[[], bool]) -> Iterator[Finding]:
    """Report messages that only the journal has, unless a writer is at work."""
    path = join(root, OWN_DIRECTORY, JOURNAL_FILE)
    try:
        waiting = only_in_journal(vfs, root)
        damages = [damage for left in journals(vfs, root) for damage in left.damages]
        stray = stray_ring(vfs, root)
    except BadState:
        return  # of the topics' settings: it is reported
    except OSError as error:
        yield Finding(path, 0, Reason.UNREADABLE, error.strerror or repr(error))
        return
    for damage in damages:
        yield Finding(damage.path, damage.position, Reason.JOURNAL_DAMAGED, damage.reason)
    if stray is not None and not is_written():
        damage = stray.damages[0]
        yield Finding(damage.path, damage.position, Reason.JOURNAL_DAMAGED, damage.reason)
    if waiting and not is_written():
        count = sum(waiting.values())
        text = f"{count} messages of {len(waiting)} shards are in the journal and not in the shards"
        yield Finding(path, 0, Reason.JOURNAL, f"{text}; opening for writing puts them there")


def only_in_journal(vfs: Vfs, root: str) -> dict[str, int]:
    """Return how many messages the journal has that are not in the files yet, by shard."""
    return lacking(vfs, root, [part for left in journals(vfs, root) for part in left.parts])


def journals(vfs: Vfs, root: str) -> list[LeftJournal | LeftRing]:
    """Return what the journals of a store hold; OSError, BadState."""
    return [left for left in (read_journal(vfs, root), read_ring(vfs, root)) if left is not None]


def read_bounds(vfs: Vfs, root: str) -> dict[str, Bounds]:
    """Return what is recorded of each shard outside of its directory, by the directory's name."""
    found = {key: bounds_of(row) for key, row in _recorded_rows(vfs, root).items()}
    return {key: bounds for key, bounds in found.items() if bounds is not None}


def _recorded_rows(vfs: Vfs, root: str) -> Mapping[str, Any]:
    try:
        return parse_shards(vfs.read_file(join(root, OWN_DIRECTORY, SHARDS_FILE)))[0]
    except OSError:
        return {}


def check_register(vfs: Vfs, root: str) -> Iterator[Finding]:
    """Report damaged lines of `shards.log`; a torn last one is in flight, or was never written."""
    path = join(root, OWN_DIRECTORY, SHARDS_FILE)
    try:
        data = vfs.read_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding(path, 0, Reason.UNREADABLE, error.strerror or repr(error))
        return
    bad = parse_shards(data)[1]
    if bad is not None and b"\n" in data[bad:]:
        yield Finding(path, bad, Reason.STALE_CACHE, "a damaged line, which does not count")


def missing_shards(
    vfs: Vfs,
    root: str,
    shards: Iterable[ShardFiles],
    topic: str | None = None,
    store_id: int | None = None,
    wanted: Callable[[str, int], bool] = lambda _topic, _store_id: True,
) -> list[str]:
    """Return the directories that shards with a record had, or those asked for, and that are gone.

    `shards` are those that were found. A writer may be deleting the topics of others: it forgets a
    shard before it moves the directory.
    """
    found = []
    there = {basename(shard.directory) for shard in shards}
    rows = _recorded_rows(vfs, root)
    for key in sorted(rows.keys() - there):
        parsed = parse_store_key(key)
        if (
            bounds_of(rows[key]) is None
            or parsed is None
            or topic not in (None, parsed[0])
            or store_id not in (None, parsed[1])
        ):
            continue
        if not wanted(*parsed):
            continue
        if not vfs.entries(join(root, key)):
            found.append(key)
    if found:
        known = read_bounds(vfs, root)
        found = [key for key in found if key in known and not known[key].given_up]
    return [join(root, key) for key in found]


def check_directories(
    vfs: Vfs, root: str, shards: Iterable[ShardFiles], topic: str | None, store_id: int | None
) -> Iterator[Finding]:
    """Report the directories of shards that are missing; `shards` were found."""
    for directory in missing_shards(vfs, root, shards, topic, store_id):
        problem = missing_directory(directory)
        yield Finding(problem.path, 0, Reason.MISSING_FILE, problem.reason)


def check_stores(vfs: Vfs, root: str, shards: Iterable[ShardFiles]) -> Iterator[Finding]:
    """Report shards that their topics do not have by the settings."""
    try:  # after the shards were listed: a writer may have given their topics more stores
        saved = read_topics(lambda name: vfs.read_file(join(root, OWN_DIRECTORY, name)))
    except (BadState, OSError):
        return  # which is reported
    for shard in shards:
        options = saved.settings.get(shard.topic)
        if options is not None and shard.store_id >= options.stores:
            problem = surplus_shard(shard.directory, options.stores)
            yield Finding(problem.path, 0, Reason.MISPLACED, problem.reason)


def check_checkpoint(vfs: Vfs, shard: ShardFiles, known: Recorded) -> Iterator[Finding]:
    """Report a checkpoint that does not describe the files of its shard (any more)."""
    trouble = _checkpoint_trouble(vfs, shard, known)
    if trouble is not None:
        path = join(shard.directory, OWN_DIRECTORY, CHECKPOINT_FILE)
        yield Finding(path, 0, Reason.STALE_CACHE, trouble)


def check_files(vfs: Vfs, shard: ShardFiles, found: Checkpoint | None) -> Iterator[Finding]:
    """Report files that are missing at the beginning or at the end of a shard."""
    index, data = shard.index, shard.data
    if (trouble := foreign(shard.directory, found)) is not None:
        yield Finding(shard.directory, 0, Reason.MISPLACED, trouble)
        return
    if found is not None:
        problems = missing_begin(
            shard.directory,
            found,
            index_start=index[0].start if index else 0 if data else found.index_end,
            data_start=data[0].start if data else found.data_end,
        )
        yield from (Finding(p.path, 0, Reason.MISSING_FILE, p.reason) for p in problems)
        if data and _names_more(found, shard):
            text = f"bytes up to {found.data_end} are recorded, the file ends before"
            end = data[-1]
            yield Finding(end.path, end.size, Reason.MISSING_FILE, text, at_end=True)
    with contextlib.suppress(FileNotFoundError):  # it was just removed
        if hidden := hidden_of(vfs, shard, found)[0]:
            yield Finding(index[0].path, 0, Reason.HIDDEN, hidden_text(len(hidden)))


def hidden_of(vfs: Vfs, shard: ShardFiles, found: Checkpoint | None) -> tuple[list[bytes], bool]:
    """Return the entries that an index file before the first one had, and whether they are all."""
    index = shard.index
    if not index or not may_be_missing(vfs, shard.directory, index[0].start, found):
        return [], False

    def data() -> Iterator[tuple[int, memoryview]]:
        for file in shard.data:
            with contextlib.closing(vfs.open(file.path, writable=False)) as opened:
                yield file.start, opened.view(file.size)

    with contextlib.closing(vfs.open(index[0].path, writable=False)) as opened:
        entry = bytes(opened.pread(ENTRY_SIZE, 0))
    return hidden_entries(index[0].start, entry, data())


def _names_more(found: Checkpoint, shard: ShardFiles) -> bool:
    """True if ends are recorded that index and data do not reach."""
    index_end = shard.index[-1].end if shard.index else 0
    data_end = shard.data[-1].end if shard.data else 0
    if not found.digest:
        return False
    return data_end < found.data_end and (index_end < found.index_end or not shard.data)


def known_holes(found: Checkpoint | None) -> list[tuple[int, int]]:
    """Return the holes of a power cut in the data that opening has kept, [from, to) each."""
    if found is None:
        return []
    return [(start, end) for start, end, why in found.damages if why.endswith(NEVER_SYNCED)]


def _checkpoint_trouble(vfs: Vfs, shard: ShardFiles, known: Recorded) -> str | None:
    found = known.checkpoint
    if found is None or _names_more(found, shard):
        return known.trouble  # files are missing, which is reported
    for files, end, digest in (
        (shard.index, found.index_end, found.index_digest),
        (shard.data, found.data_end, found.data_digest),
    ):
        if files and files[0].start >= end:
            continue  # retention has removed them
        if digest and _digest_before(vfs, files, end) != digest:
            return f"its digest of the bytes before {end} is not that of the files"
    return None


def _digest_before(vfs: Vfs, files: tuple[StoredFile, ...], end: int) -> str | None:
    """Digest the last bytes before an offset, as the file is now and not as it was listed."""
    file = next((f for f in reversed(files) if f.start <= max(0, end - 1)), None)
    if file is None:
        return None
    start = max(file.start, end - CHECKPOINT_DIGEST_BYTES)
    try:
        opened = vfs.open(file.path, writable=False)
    except FileNotFoundError:
        return None
    raw = opened.pread(end - start, start - file.start)
    opened.close()
    return xxhash.xxh3_64_hexdigest(raw) if len(raw) == end - start else None
