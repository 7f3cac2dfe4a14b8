"""Mend a store that is damaged, or will not open, without opening it.

    for action in repair("data"):               # what would be done; nothing is changed
        print(action.path, action.action, action.position, action.bytes, action.message)
    for action in repair("data", apply=True): ...

The rules are those of recovery (decisions.md D7); it goes further where recovery refuses: gaps and
overlaps, foreign names, state files. Always true:

- good data is never cut; what is cut, replaced or taken out is first copied to
  `<root>/.tubestore/quarantine/<n>/`;
- a file that readers may have mapped is not shortened: a new one takes its place (D10);
- a run that is interrupted anywhere is simply run again;
- afterwards `check` finds only what is marked `leave`: damage that nothing can mend and that has
  intact messages behind it. It stays, and each such message is a row with a state;
- offsets of messages do not change;
- a root's journal is not touched: the next opening for writing puts back the messages that shards
  lack, behind what is mended here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from os.path import basename

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.quarantine import Action, Quarantine
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.disks.roots import local_root
from tubestore.disks.writer_lock import take_writer_lock
from tubestore.errors import StoreLocked
from tubestore.offline.bytes_read import BytesRead, Watch
from tubestore.offline.own_files import read_bounds
from tubestore.offline.own_repair import give_up_shards, repair_state
from tubestore.offline.shard_repair import ShardRepair
from tubestore.record.names import LOCK_FILE
from tubestore.segments.listing import check_root, find_shards

__all__ = ["Action", "repair"]


def repair(
    root: str | os.PathLike[str],
    *,
    apply: bool = False,
    topic: str | None = None,
    store_id: int | None = None,
    vfs: Vfs | None = None,
    is_written: Callable[[], bool] | None = None,
    watch: Watch | None = None,
) -> Iterator[Action]:
    """Yield what would be done; with `apply` do it, each action before it is yielded.

    StoreLocked if a writer has the store open (without `apply` only if `is_written` returns True:
    no lock is touched then), NotAStore if there is no store at `root`; OSError where the disk
    refuses. With `topic` and `store_id` only those shards, and nothing of the store itself. `watch`
    gets the bytes that are read, and all of them, every MiB or so: sealed files are read twice.
    """
    root, vfs = local_root(root), vfs or OsVfs()
    check_root(root, vfs)
    if not apply:
        if is_written is not None and is_written():
            raise StoreLocked(root, vfs.lock_holder(join(root, OWN_DIRECTORY, LOCK_FILE)))
        yield from _run(vfs, root, topic, store_id, None, watch)
        return
    own = join(root, OWN_DIRECTORY)
    vfs.make_directories(own)
    path = join(own, LOCK_FILE)
    lock = take_writer_lock(vfs, path, kind="flock", root=root, own=own, note=path)
    try:
        quarantine = Quarantine(vfs, root)
        yield from _run(vfs, root, topic, store_id, quarantine, watch)
    finally:
        lock.release()


def _run(
    vfs: Vfs,
    root: str,
    topic: str | None,
    store_id: int | None,
    quarantine: Quarantine | None,
    watch: Watch | None,
) -> Iterator[Action]:
    if topic is None and store_id is None:
        yield from repair_state(vfs, root, quarantine)
    yield from give_up_shards(vfs, root, quarantine, topic, store_id)
    bounds = read_bounds(vfs, root)
    shards = find_shards(root, vfs, topic=topic, store_id=store_id, with_pending=quarantine is None)
    read = BytesRead(shards, watch)
    for shard in shards:
        read.begin(shard)
        outside = bounds.get(basename(shard.directory))
        yield from ShardRepair(vfs, shard, quarantine, outside, read).run()
    read.finish()
