"""Which files of the CommitLog may go, and when: RocketMQ's rules as a plan.

Pure: facts about files, the disk and the clock go in, a verdict a file comes out. The service
that acts on them is `clean_service.py`; `rocketcompat clean --explain` prints them.

The rules: a run does something in the hours of `delete_when` (local time), or with more of the
disk used than `disk_max_used_space_ratio`, or when asked by hand. Then the oldest files go that
have not been changed for `file_reserved_time` hours, at most `delete_file_batch_max` a run and
never the last one; above `disk_space_clean_forcibly_ratio` whatever their age. Above
`disk_space_warning_level_ratio` writes are refused.

Difference from RocketMQ: a file that queues, index or shards have not durably taken in yet stays,
also on a full disk. RocketMQ deletes it and loses those messages' entries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rocketcompat.options import MessageStoreConfig

_HOUR_MS = 3_600_000
#: The percentage of a missing path; as in RocketMQ, which deletes then.
UNKNOWN_USE = -1


class DiskUse(NamedTuple):
    """Used space of the disks under log and queues, whole percent, rounded up."""

    commit_log: int
    consume_queue: int


class LogFile(NamedTuple):
    """A file of the log as a plan needs it; sizes in bytes, times in ms."""

    path: str
    start: int
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Occasion:
    """The reasons why a run deletes now, or why it does not."""

    #: In the hour, the disk's ratio, by hand: any of them is enough.
    reasons: tuple[str, ...]
    #: Files go whatever their age.
    at_once: bool
    #: Writes are refused until the use is down to the warning level again.
    disk_full: bool
    #: The condition under which a run would delete, for the rows that stay.
    waits_for: str


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The verdict of a run on one file, and the reason."""

    path: str
    start: int
    size: int
    modified_ms: int
    delete: bool
    reason: str
    #: When the file's time is over, ms since the epoch; None for the last file.
    due_ms: int | None


def disk_used_percent(path: str) -> int:
    """Return how much of a path's file system is used, as `df` does; UNKNOWN_USE if missing."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return UNKNOWN_USE
    used, usable = facts.f_blocks - facts.f_bfree, facts.f_bavail
    return -(-used * 100 // (used + usable)) if used + usable else 0


def least_used(
    directories: Sequence[str], disk_used: Callable[[str], int] = disk_used_percent
) -> tuple[int, dict[str, int]]:
    """Return how full the least used disk of some directories is, and each one's.

    Those that are missing count only when all are: UNKNOWN_USE.
    """
    each = {directory: disk_used(directory) for directory in directories}
    known = [used for used in each.values() if used != UNKNOWN_USE]
    return min(known, default=UNKNOWN_USE), each


def occasion(
    config: MessageStoreConfig, now_ms: int, disk: DiskUse, *, manual: bool = False
) -> Occasion:
    """Judge the moment: is it time to delete, at whatever age, and may messages be taken?

    >>> night = occasion(MessageStoreConfig(delete_when="0;1;2"), 0, DiskUse(91, 10))
    >>> night.at_once, night.disk_full
    (True, True)
    """
    reasons = []
    hour = datetime.fromtimestamp(now_ms / 1000).hour  # noqa: DTZ006  the rule is in local time
    if hour in config.delete_hours:
        reasons.append(f"it is the hour {hour:02d}")
    ratio = config.space_ratio
    at_once = disk_full = False
    for name, used in zip(("commit log", "consume queues"), disk, strict=True):
        full = used > config.warning_ratio
        # As RocketMQ: the queues' disk is checked only if the log's disk gave no reason.
        at_once |= used > min(config.forcible_ratio, config.warning_ratio)
        disk_full |= full
        if used == UNKNOWN_USE or used > ratio:
            reasons.append(f"the disk of the {name} is {used} % used, above {ratio} %")
            break
    if manual:
        reasons.append("asked for by hand")
    hours = ", ".join(f"{hour:02d}" for hour in sorted(config.delete_hours))
    waits_for = f"goes in the hour {hours} or above {ratio} % of the disk ({disk.commit_log} % now)"
    forced = at_once and config.clean_file_forcibly_enable
    return Occasion(tuple(reasons), forced, disk_full, waits_for)


def plan(
    files: Sequence[LogFile],
    config: MessageStoreConfig,
    now_ms: int,
    when: Occasion,
    *,
    keep_from: int | None = None,
) -> list[FileVerdict]:
    """Return a verdict for each file of the log, in its order.

    `keep_from` is the physical offset from which on something must still be built; a file that
    reaches beyond it stays.
    """
    verdicts: list[FileVerdict] = []
    older_stays = ""
    deleted = 0
    for place, file in enumerate(files):
        due: int | None = file.modified_ms + config.file_reserved_time * _HOUR_MS
        reason = older_stays
        if place == len(files) - 1:
            due, reason = None, "the last file is never deleted"
        elif not reason:
            reason = _why_it_stays(file, config, now_ms, when, keep_from)
            if not reason and deleted == config.delete_file_batch_max:
                reason = f"a later run: {deleted} files at most in one"
        if not reason:
            deleted += 1
            reason = _why_it_goes(file, config, now_ms, when)
            verdicts.append(FileVerdict(*file, True, reason, due))
            continue
        if not older_stays:
            older_stays = "an older file stays"
        verdicts.append(FileVerdict(*file, False, reason, due))
    return verdicts


def _why_it_stays(
    file: LogFile,
    config: MessageStoreConfig,
    now_ms: int,
    when: Occasion,
    keep_from: int | None,
) -> str:
    age = (now_ms - file.modified_ms) / _HOUR_MS
    if keep_from is not None and file.start + file.size > keep_from:
        return "not everything in it is durably in queues, index and shards yet"
    if when.at_once and when.reasons:
        return ""
    if age < config.file_reserved_time:
        return f"changed {age:.1f} h ago, kept for {config.file_reserved_time} h"
    return "" if when.reasons else f"expired; {when.waits_for}"


def _why_it_goes(file: LogFile, config: MessageStoreConfig, now_ms: int, when: Occasion) -> str:
    age = (now_ms - file.modified_ms) / _HOUR_MS
    why = " and ".join(when.reasons)
    if when.at_once and age < config.file_reserved_time:
        return f"whatever its age: {why}, and above {config.forcible_ratio} %"
    return f"unchanged for {age:.1f} h, kept for {config.file_reserved_time} h; {why}"
