"""Stores that commands write to: checked before they are opened, since opening adds files.

Opening for writing leaves `.tubestore` in a directory. After a mistake, such as the name of a
topic that is not there, the directory is as it was.
"""

from __future__ import annotations

from typing import Any

import tubestore
from tubestore.cli.kit.arguments import note
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.state_file import BadState
from tubestore.disks.roots import disk_of
from tubestore.journal.ring_reading import ring_paths
from tubestore.record.names import JOURNAL_FILE, check_topic_name, parse_store_key
from tubestore.segments.listing import check_root


def open_existing(root: str, topic: str | None = None, **how: Any) -> tubestore.MessageStoreManager:
    """Open a store to write to; NotAStore if there is none, UnknownTopic if it lacks the topic."""
    check_root(root, disk_of(root))
    if topic is not None and not disk_of(root).exists(join(root, OWN_DIRECTORY)):
        with tubestore.open(root, mode="r") as seen:
            seen.topic(topic)
    return tubestore.open(root, **how)


def open_or_make(root: str, topic: str) -> tubestore.MessageStoreManager:
    """Open a store, or make one, in which a topic may be made."""
    check_topic_name(topic)
    if disk_of(root).exists(root):
        check_root(root, disk_of(root))
    return tubestore.open(root)


def note_journal(root: str, topic: str | None = None, store_id: int | None = None) -> None:
    """Print how many messages a command that shows the files leaves out: those in the journal."""
    path = join(root, OWN_DIRECTORY, JOURNAL_FILE)
    vfs = disk_of(root)
    if not vfs.exists(path) and not ring_paths(vfs, root):
        return
    from tubestore.offline.own_files import only_in_journal

    try:
        found = only_in_journal(vfs, root)
    except OSError as error:
        note(f"tubestore: {path} cannot be read: {error.strerror}")
        return
    except BadState as error:
        note(f"tubestore: the journal cannot be read, since the topics cannot: {error}")
        return
    keys = {name: parse_store_key(name) or ("", -1) for name in found}
    wanted = [
        n for n, key in keys.items() if topic in (None, key[0]) and store_id in (None, key[1])
    ]
    if wanted:
        count = sum(found[name] for name in wanted)
        text = f"{count} messages of {len(wanted)} shards are in the journal and not shown here"
        note(f"tubestore: {path}: {text}; `tubestore recover {root}` puts them into the shards")
