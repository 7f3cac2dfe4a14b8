"""Names of files and directories, made and parsed in this one place.

    <root>/<topic>-<store id>/<20 digits>.tube           data segments
    <root>/<topic>-<store id>/index/<20 digits>.index    index segments
    <root>/<topic>-<store id>/.tubestore/                caches: may be deleted
    <root>/.tubestore/                                   state: topics, lock, leases, published
    …/.tubestore/trash/                                  what retention or a deletion removed

The digits are the absolute byte offset of the segment's first byte. TubeMQ skips
directories without a `-` and every sub-directory of a shard but `index` (D1).
"""

from __future__ import annotations

import re

from tubestore.errors import InvalidName

DATA_SUFFIX = ".tube"
INDEX_SUFFIX = ".index"
INDEX_DIRECTORY = "index"
#: A RocketMQ store has it, a tubestore has not.
COMMIT_LOG_DIRECTORY = "commitlog"
CHECKPOINT_FILE = "checkpoint.json"
TOPICS_FILE = "topics.json"
#: Changes of topics' settings since `topics.json`, which names the file: `topics-<number>.log`.
TOPICS_LOG_PREFIX = "topics-"
TOPICS_LOG_SUFFIX = ".log"
LOCK_FILE = "lock"
#: Empty; there while no process has the store open that was closed with everything synced.
CLOSED_FILE = "closed"
JOURNAL_FILE = "journal"
#: There while the journal has frames: in which boot it was begun, and whether it was synced.
JOURNALLED_FILE = "journalled"
#: What each shard had, a line for some shards: recorded outside of the shards' directories.
SHARDS_FILE = "shards.log"
#: Segments of the ring journal: `ring-<slot>`.
RING_PREFIX = "ring-"
#: What a data file's new name is followed by while `repair` moves it.
MOVING_SUFFIX = ".moving"
REPAIR_SUFFIX = ".repair"
STAGING_DIRECTORY = "staging"
COMMITS_DIRECTORY = "commits"
PUBLISHED_FILE = "published.json"
JOBS_FILE = "jobs.json"
DIGESTS_SUFFIX = ".digests"
LEASES_DIRECTORY = "leases"
GROUPS_DIRECTORY = "groups"

TOPIC_LENGTH_MAX = 127
_DIGITS = re.compile(r"\d+")
#: What a directory name can carry: wider than TubeMQ's own rule, for `%RETRY%group` and `a-b` (D2).
_TOPIC = re.compile(r"[A-Za-z0-9_%|.-]+")


def segment_name(start: int, suffix: str) -> str:
    """Return the file name of the segment that starts at `start`.

    >>> segment_name(1073742337, DATA_SUFFIX)
    '00000000001073742337.tube'
    """
    return f"{start:020d}{suffix}"


def parse_segment_name(name: str, suffix: str) -> int | None:
    """Return the start offset in a segment's name; None if it is not such a name.

    An offset that 8 bytes cannot hold is none. Any digits that Java's `Long.parseLong` takes
    are taken: TubeMQ writes the digits of its locale.

    >>> parse_segment_name("00000000000000000028.index", INDEX_SUFFIX)
    28
    """
    stem = name.removesuffix(suffix)
    if stem == name or not _DIGITS.fullmatch(stem):
        return None
    start = int(stem)
    return start if start < 1 << 63 else None


def store_key(topic: str, store_id: int) -> str:
    """Return the directory name of a shard."""
    return f"{topic}-{store_id}"


def parse_store_key(name: str) -> tuple[str, int] | None:
    """Return (topic, store id) of a shard's directory, split at the last `-`; None if it is none.

    >>> parse_store_key("a-b-3"), parse_store_key("offsetDir"), parse_store_key("a-03")
    (('a-b', 3), None, None)
    """
    topic, dash, digits = name.rpartition("-")
    if not dash or not topic or not digits.isascii() or not digits.isdecimal():
        return None
    return (topic, int(digits)) if str(int(digits)) == digits else None


def check_topic_name(topic: str) -> str:
    """Return the name, or raise InvalidName if a directory cannot carry it."""
    if not isinstance(topic, str) or not topic:
        raise InvalidName(str(topic), "a topic needs a name")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise InvalidName(topic, f"longer than {TOPIC_LENGTH_MAX} characters")
    if not _TOPIC.fullmatch(topic) or topic.startswith((".", "-")):
        raise InvalidName(topic, "only A-Z a-z 0-9 _ - % | . and not . or - first")
    return topic
