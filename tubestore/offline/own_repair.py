"""Repairs a store's own files: state files, and a job that is half published.

| action | what is done |
| --- | --- |
| `finish_job` | the rest of a half-published job's files go to their place |
| `give_up_job` | they cannot: what is staged is taken out, the rest stays; with a rest the id is \
refused from then on, else the job can be published again |
| `reset_state` | a file that cannot be read is taken out, and made anew as far as that goes |
| `give_up_shard` | a shard's directory is missing: a new one begins behind its last offset |
| `leave` | a file of a newer version: another version of this package reads it |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from os.path import basename

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.quarantine import Action, Quarantine
from tubestore.core.state_file import STATE_VERSION, BadState, NewerState, parse_state
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore
from tubestore.offline.own_files import check_register, missing_shards, read_bounds, trouble_of
from tubestore.record.names import JOBS_FILE, PUBLISHED_FILE, SHARDS_FILE, TOPICS_FILE
from tubestore.record.state_files import RING_FEATURE, parse_topics, shards_line, sound_changes
from tubestore.segments.listing import find_shards
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.roll_forward import give_up, places_of, recover

_AFTERWARDS = {
    STORE_FILE: "the store gets a new identity when it is opened",
    TOPICS_FILE: "settings of topics are learned from their files: give them again",
    PUBLISHED_FILE: "it is made from the records of jobs",
    JOBS_FILE: "the ids of jobs without a record are lost: do not publish those jobs again",
}


def repair_state(vfs: Vfs, root: str, quarantine: Quarantine | None) -> Iterator[Action]:
    """Mend the store's own files, or without `quarantine` only return how."""
    records = CommitRecords(vfs, root)
    newer, number = False, None
    for name, afterwards in _AFTERWARDS.items():
        path = join(root, OWN_DIRECTORY, name)
        trouble = trouble_of(vfs, path)
        if trouble is None:
            continue
        if isinstance(trouble, NewerState):
            newer = True
            yield Action(path, "leave", 0, 0, str(trouble))
            continue
        if name == TOPICS_FILE and trouble.name:
            yield _repair_log(vfs, root, trouble, quarantine)
            continue
        missing = not vfs.exists(path)
        size = 0 if missing else len(vfs.read_file(path))
        if name == PUBLISHED_FILE:
            number = records.last()
        if quarantine is not None:
            if name == TOPICS_FILE:
                _forget_topics(vfs, root)
            if not missing:
                quarantine.move(path)
            if name in (PUBLISHED_FILE, JOBS_FILE):
                records.restore()
        yield Action(path, "reset_state", 0, size, f"{trouble}; {afterwards}")
    if not newer:
        number = records.finished() + 1 if number is None else number
        yield from _repair_job(vfs, root, records, number, quarantine)


def _repair_log(vfs: Vfs, root: str, trouble: BadState, quarantine: Quarantine | None) -> Action:
    """Write the sound part of its log of changes into `topics.json`, and end the log."""
    settings, log = join(root, OWN_DIRECTORY, TOPICS_FILE), join(root, OWN_DIRECTORY, trouble.name)
    data = vfs.read_file(log) if vfs.exists(log) else b""
    if quarantine is not None:
        saved = parse_topics(vfs.read_file(settings))
        topics = {**saved.settings, **sound_changes(data)}
        content = {
            "version": STATE_VERSION,
            "topics": {name: options.as_json() for name, options in topics.items()},
            "deleted": sorted(saved.deleted),
        }
        vfs.replace_file(settings, json.dumps(content).encode())
        if vfs.exists(log):
            quarantine.move(log)
    text = "its sound lines count; what else it changed of topics is learned from their files"
    return Action(log, "reset_state", trouble.position, len(data), f"{trouble}; {text}")


def give_up_shards(
    vfs: Vfs, root: str, quarantine: Quarantine | None, topic: str | None, store_id: int | None
) -> Iterator[Action]:
    """Let shards begin anew, behind their last offsets, where their directories are missing.

    Damaged lines of `shards.log` go, too.
    """
    path = join(root, OWN_DIRECTORY, SHARDS_FILE)
    shards = find_shards(root, vfs, topic=topic, store_id=store_id)
    missing = missing_shards(vfs, root, shards, topic, store_id)
    damaged = list(check_register(vfs, root))
    if quarantine is not None and (missing or damaged):
        keys = {basename(directory) for directory in missing}
        bounds = {
            key: known._replace(given_up=int(key in keys or known.given_up))
            for key, known in read_bounds(vfs, root).items()
        }
        if damaged:
            quarantine.copy(path)
        vfs.replace_file(path, shards_line(bounds))
    for finding in damaged:
        size = len(vfs.read_file(path))
        yield Action(path, "reset_state", finding.position, size, "its sound lines count")
    for directory in missing:
        text = "the directory is missing: a new one begins behind the shard's last offset"
        yield Action(directory, "give_up_shard", 0, 0, text)


def _forget_topics(vfs: Vfs, root: str) -> None:
    """Make `store.json` record no topics any more."""
    path = join(root, OWN_DIRECTORY, STORE_FILE)
    if not vfs.exists(path):
        return  # it was taken out as well
    content = {**parse_state(vfs.read_file(path), [RING_FEATURE]), "topics": False}
    vfs.replace_file(path, json.dumps(content).encode())


def _repair_job(
    vfs: Vfs, root: str, records: CommitRecords, number: int, quarantine: Quarantine | None
) -> Iterator[Action]:
    path = records.path(number)
    try:
        record = records.read(number)
    except NotAStore as error:
        size = len(vfs.read_file(path))
        if quarantine is not None:
            quarantine.move(path)
        text = f"{error.reason}; what its job has staged stays"
        yield Action(path, "reset_state", 0, size, text)
        return
    if record is None:
        return
    places = places_of(vfs, root, record)
    staged = [place.move for place in places if place.is_staged]
    size = sum(move.size for move in staged)
    obstacle = next((place.obstacle for place in places if place.obstacle), None)
    text = f"job {record.job_id!r}: {len(staged)} of {len(places)} files are still staged"
    if obstacle is None:
        if quarantine is not None:
            recover(vfs, root)
        yield Action(path, "finish_job", 0, size, text)
        return
    text = f"{text}; it cannot go on: {obstacle}"
    if quarantine is not None:
        finals = [(place.move.final, place.move.begins, place.move.size) for place in places]
        text = f"{text}; {give_up(vfs, records, record, finals, quarantine.move)}"
    yield Action(path, "give_up_job", 0, size, text)
