"""How many slots and items an index file has: given, or proven by its content.

The numbers are not in the file, and a wrong guess misreads every item. But each item
is in the chain of slot `hash % slots`, and the header has the offsets of the first and the last
item: only the right number of slots makes all of that fit.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rocketcompat.formats import (
    INDEX_DIRECTORY,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_SLOT_SIZE,
    parse_offset_name,
)
from rocketcompat.index.items import IndexGeometry, IndexHeader, Int32s, link_chains
from rocketcompat.inspect.directory import StoreDirectory, file_sizes
from rocketcompat.options import MessageStoreConfig, camel_to_snake
from rocketcompat.queues.proof import sizes_from
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import InvalidMessage, NotAStore

#: Of so many items one may be damaged, and the geometry is still beyond doubt.
WRONG_SHARE = 20
_SLOTS, _ITEMS, _LOG_SIZE = "maxHashSlotNum", "maxIndexNum", "mappedFileSizeCommitLog"
_WORD = 4
_ITEM_WORDS = INDEX_ITEM.size // _WORD
#: Items that are compared together.
_STEP_ITEMS = 1 << 18
_AT_ONCE_ITEMS = 1 << 21


def geometry_of(directory: StoreDirectory, *, trust_options: bool = False) -> IndexGeometry:
    """Return the geometry of a directory's index files.

    From the options, else the default if the size is the default's and nothing contradicts, else
    what the fullest file proves. InvalidMessage names the options to give. With the flag
    two numbers that are given count, whatever length the files have: for a file that is damaged.
    """
    config = directory.config
    if trust_options and {_SLOTS, _ITEMS} <= set(directory.options):
        return IndexGeometry(config.max_hash_slot_num, config.max_index_num)
    return _geometry_of(directory.vfs, directory.index_paths(), config, directory.options)


def writing_config(directory: StoreDirectory) -> MessageStoreConfig:
    """Return the options for opening the directory with this package: its sizes, its layouts."""
    config = directory.config
    if _LOG_SIZE in directory.inferred:
        _refuse_cut_log(directory.vfs, directory.root, config)
    geometry = geometry_of(directory)
    return config.changed(
        max_hash_slot_num=geometry.slots,
        max_index_num=geometry.items,
        layouts=directory.layouts() | {"consume_queue"},
    )


def config_of_files(
    config: MessageStoreConfig, vfs: Vfs, root: str, *, writable: bool
) -> MessageStoreConfig:
    """Return the options with the sizes and the index geometry of the files in a store's root.

    An option with another value than the default counts as it is. What the files do not prove stays
    as it is, too: opening reports it. NotAStore if the log's only file is shorter than it was.
    """
    default = MessageStoreConfig()
    paths = [*config.commit_log_directories(root), *config.read_only_directories(root)]
    sizes = {camel_to_snake(name): size for name, size in file_sizes(vfs, root, paths).items()}
    found = {
        name: size
        for name, size in sizes.items()
        if getattr(config, name) == getattr(default, name) != size
    }
    with suppress(InvalidMessage):  # a length that no file of a broker has
        config = config.changed(**found)
        if writable and camel_to_snake(_LOG_SIZE) in found:
            _refuse_cut_log(vfs, root, config)
    names = [camel_to_snake(name) for name in (_SLOTS, _ITEMS)]
    given = {name: getattr(config, name) for name in names}
    if any(value != getattr(default, name) for name, value in given.items()):
        return config
    base = os.path.join(root, INDEX_DIRECTORY)
    files = [row for row in vfs.entries(base) if not row[1] and row[0].isdecimal()]
    if all(size in (0, IndexGeometry().file_size) for _, _, size in files):
        return config  # its content is not examined: that takes seconds
    with suppress(InvalidMessage):
        index_paths = [os.path.join(base, name) for name, _, _ in files]
        geometry = _geometry_of(vfs, index_paths, config, ())
        config = config.changed(max_hash_slot_num=geometry.slots, max_index_num=geometry.items)
    return config


def _refuse_cut_log(vfs: Vfs, root: str, config: MessageStoreConfig) -> None:
    """Raise NotAStore if the log's size was taken from one file, and queues go on behind it."""
    size = config.mapped_file_size_commit_log
    paths = [*config.commit_log_directories(root), *config.read_only_directories(root)]
    starts = [row[0] for path in paths for row in files_by_start(vfs, path, parse_offset_name)]
    if len(starts) != 1:
        return
    end = starts[0] + size
    behind = max((at + length for at, length in sizes_from(vfs, root, config, end).items()),
                 default=0)  # fmt: skip
    if behind:
        raise NotAStore(
            root,
            f"the only file of its log has {size} bytes, and its queues have messages up to"
            f" {behind}: it was cut. Put the whole file back, or give its size ({_LOG_SIZE})",
        )


def _geometry_of(
    vfs: Vfs, paths: Sequence[str], config: MessageStoreConfig, options: Container[str]
) -> IndexGeometry:
    both = IndexGeometry(config.max_hash_slot_num, config.max_index_num)
    files = [(path, *_header(vfs, path)) for path in paths]
    files = [row for row in files if row[1] >= INDEX_HEADER.size]
    if not files:
        return both  # as given, or the default
    path, size, header = max(files, key=lambda row: row[2].index_count)
    given = _given(config, options, size)
    if given is not None:
        return given
    default = IndexGeometry()
    count = header.index_count - 1
    if size == default.file_size and (count == 0 or _fits(vfs, path, default, header)):
        return default
    if count == 0:  # nothing to misread: any will do
        words = (size - INDEX_HEADER.size) // _WORD
        slots = words % _ITEM_WORDS or _ITEM_WORDS
        return IndexGeometry(slots, (words - slots) // _ITEM_WORDS)
    proven = [g for g in _candidates(vfs, path, size, header) if _fits(vfs, path, g, header)]
    if len(proven) == 1:
        return proven[0]
    raise InvalidMessage(
        f"{path}: its {size} bytes do not show how many slots it has;"
        f" give --option {_SLOTS}=N --option {_ITEMS}=N as the broker was configured"
    )


def _header(vfs: Vfs, path: str) -> tuple[int, IndexHeader]:
    file = vfs.open(path, writable=False)
    raw = file.pread(INDEX_HEADER.size, 0)
    size = file.size()
    file.close()
    return size, IndexHeader.unpack(raw.ljust(INDEX_HEADER.size, b"\0"))


def _given(config: MessageStoreConfig, options: Container[str], size: int) -> IndexGeometry | None:
    """Return the geometry of the options; one number follows from the other and the size."""
    slots = config.max_hash_slot_num if _SLOTS in options else None
    items = config.max_index_num if _ITEMS in options else None
    body = size - INDEX_HEADER.size
    if slots is None and items is not None:
        slots = (body - items * INDEX_ITEM.size) // INDEX_SLOT_SIZE
    elif items is None and slots is not None:
        items = (body - slots * INDEX_SLOT_SIZE) // INDEX_ITEM.size
    if slots is None or items is None:
        return None
    found = IndexGeometry(slots, items)
    if slots < 1 or items < 1 or found.file_size != size:
        raise InvalidMessage(f"{_SLOTS}, {_ITEMS}: do not give index files of {size} bytes")
    return found


def _candidates(vfs: Vfs, path: str, size: int, header: IndexHeader) -> list[IndexGeometry]:
    """Return the geometries with the header's first and last item in their places."""
    words_total = (size - INDEX_HEADER.size) // _WORD
    count = header.index_count - 1
    if (size - INDEX_HEADER.size) % _WORD or count * _ITEM_WORDS >= words_total:
        return []
    least = words_total % _ITEM_WORDS or _ITEM_WORDS
    # The items have to fit in behind the slots.
    end = max(words_total - (count + 1) * _ITEM_WORDS + 1, 0)
    found: list[IndexGeometry] = []
    file = vfs.open(path, writable=False)
    try:
        for first in range(least, end, _STEP_ITEMS * _ITEM_WORDS):
            slots = np.arange(first, min(first + _STEP_ITEMS * _ITEM_WORDS, end), _ITEM_WORDS)
            good = _is_item(file, slots, 1, header.begin_physical_offset)
            good &= _is_item(file, slots, count, header.end_physical_offset)
            found += [
                IndexGeometry(slot, (words_total - slot) // _ITEM_WORDS)
                for slot in slots[good].tolist()
            ]
    finally:
        file.close()
    return found


def _is_item(file: VfsFile, slots: Any, number: int, offset: int) -> Any:
    """Return the numbers of slots with which an item may be one of the record at `offset`."""
    position = INDEX_HEADER.size + _WORD * int(slots[0]) + INDEX_ITEM.size * number
    raw = file.pread(INDEX_ITEM.size * len(slots), position)
    items = np.zeros(len(slots), INDEX_ITEM.dtype)
    there = np.frombuffer(raw, INDEX_ITEM.dtype, len(raw) // INDEX_ITEM.size)
    items[: len(there)] = there
    good = (items["key_hash"] >= 0) & (items["physical_offset"] == offset)
    good &= (
        (items["time_diff_seconds"] >= 0) & (items["previous"] >= 0) & (items["previous"] < number)
    )
    good[len(there) :] = False
    return good


def _fits(vfs: Vfs, path: str, geometry: IndexGeometry, header: IndexHeader) -> bool:
    """True if all chains and the slot table agree with this number of slots."""
    count = header.index_count - 1
    file = vfs.open(path, writable=False)
    try:
        table, wrong = None, 0
        if count <= _AT_ONCE_ITEMS:  # it takes memory for every item
            table = _sound_table(file, geometry, count)
        if table is None:
            table, wrong = _linked_table(file, geometry, count)
        # Slots may be older than the items after a crash, and a chain or two may be damaged.
        known = 0
        for first in range(0, geometry.slots, _STEP_ITEMS):
            some = min(_STEP_ITEMS, geometry.slots - first)
            position = INDEX_HEADER.size + INDEX_SLOT_SIZE * first
            stored = np.frombuffer(file.pread(INDEX_SLOT_SIZE * some, position), ">i4")
            known += int(np.count_nonzero(stored))
            newer = stored > table[first : first + len(stored)]
            wrong += int(np.count_nonzero(newer & (stored != 0)))
    finally:
        file.close()
    return known > 0 and wrong <= count // WRONG_SHARE


def _linked_table(file: VfsFile, geometry: IndexGeometry, count: int) -> tuple[Int32s, int]:
    """Return the slot table that the items call for, and how many of them are chained otherwise."""
    table = np.zeros(geometry.slots, np.int32)
    wrong = 0
    for number in range(1, count + 1, _STEP_ITEMS):
        some = min(_STEP_ITEMS, count + 1 - number)
        raw = file.pread(some * INDEX_ITEM.size, geometry.item_position(number))
        items = np.frombuffer(raw, INDEX_ITEM.dtype, len(raw) // INDEX_ITEM.size)
        if len(items) < some or bool((items["key_hash"] < 0).any()):
            return np.zeros(geometry.slots, np.int32), count
        slots = items["key_hash"].astype(np.int64) % geometry.slots
        chains = link_chains(table, slots, number)
        table[chains.slots] = chains.newest
        wrong += int(np.count_nonzero(chains.previous != items["previous"]))
    return table, wrong


def _sound_table(file: VfsFile, geometry: IndexGeometry, count: int) -> Int32s | None:
    """Return the slot table that all chains end in; None unless every one of them is right.

    They are if each item's predecessor is an older one of its slot and of no other item, and each
    slot has one item without a predecessor. That needs no sorting, which takes ten times as long.
    """
    slots = np.empty(count, np.int32)
    followed, begun = np.zeros(count, bool), np.zeros(geometry.slots, bool)
    heads = 0
    for first in range(0, count, _STEP_ITEMS):
        some = min(_STEP_ITEMS, count - first)
        raw = file.pread(some * INDEX_ITEM.size, geometry.item_position(first + 1))
        if len(raw) < some * INDEX_ITEM.size:
            return None
        items = np.frombuffer(raw, INDEX_ITEM.dtype)
        hashes, before = items["key_hash"].astype(np.int32), items["previous"].astype(np.int32) - 1
        if bool((hashes < 0).any()):
            return None
        own = slots[first : first + some] = hashes % np.int32(geometry.slots)
        linked = before >= 0
        older = before[linked]
        if bool((before < -1).any() | (before >= np.arange(first, first + some)).any()):
            return None
        if bool((slots[older] != own[linked]).any() | followed[older].any()):
            return None
        followed[older] = begun[own[~linked]] = True
        heads += some - len(older)
    # An item that two follow is counted once, and so is a slot that begins twice.
    if np.count_nonzero(followed) + heads != count or np.count_nonzero(begun) != heads:
        return None
    table = np.zeros(geometry.slots, np.int32)
    newest = np.flatnonzero(~followed)
    table[slots[newest]] = newest + 1
    return table
