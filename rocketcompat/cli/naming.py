"""Check the names that options give: a missing one is an error that lists what there is."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from tubestore.cli.kit.errors import NotThere
from tubestore.cli.kit.text import Row

if TYPE_CHECKING:
    from rocketcompat.inspect.directory import StoreDirectory

QueueKey = tuple[str, int]


def check_queue(
    directory: StoreDirectory, found: Collection[QueueKey], topic: str | None, queue: int | None
) -> None:
    """Raise NotThere if none of the queues that were found is the one that was asked for."""
    if any(topic in (None, name) and queue in (None, number) for name, number in found):
        return
    if topic is None and queue is None:
        return
    there = _queues(directory)
    numbers = sorted(number for name, number in there if name == topic)
    if topic is None:
        raise NotThere(f"queue {queue} of any topic", (f"{t}/{n}" for t, n in sorted(there)))
    if queue is None or not numbers:
        names = sorted({name for name, _ in there})
        raise NotThere(f"topic {topic!r} in this store", names, topic)
    raise NotThere(f"queue {queue} of topic {topic!r}", map(str, numbers))


def check_name(directory: StoreDirectory, topic: str, queue: int | None = None) -> None:
    """Raise NotThere if the store has no queue of a topic, or not the one with this number."""
    check_queue(directory, _queues(directory), topic, queue)


def check_choice(directory: StoreDirectory, topic: str | None, queue: int | None) -> None:
    """Raise NotThere if a topic or queue that was chosen has no queue; for a search without a find.

    A store that lost its queues has none to compare with.
    """
    there = _queues(directory)
    if there:
        check_queue(directory, there, topic, queue)


def check_group(rows: Collection[Row], group: str | None) -> None:
    """Raise NotThere if no row of `lag` is of the group that was asked for."""
    there = sorted({row["group"] for row in rows})
    if group is not None and group not in there:
        raise NotThere(f"group {group!r} in config/consumerOffset.json", there, group)


def check_index_file(directory: StoreDirectory, name: str | None) -> None:
    """Raise NotThere if there is no index file of a name."""
    there = [os.path.basename(path) for path in directory.index_paths()]
    if name is not None and name not in there:
        raise NotThere(f"index file {name!r}", there, name)


def _queues(directory: StoreDirectory) -> set[QueueKey]:
    """Return the queues that have files."""
    from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_DIRECTORY

    kinds = (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY)
    return {key for kind in kinds for key in directory.queue_names(kind)}
