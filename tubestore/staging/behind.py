"""Puts staged bytes behind the last byte of a file that is there.

Always true: the copy may be interrupted anywhere and done again. A staged file goes when its bytes
are durable in their place.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tubestore.core.vfs import Vfs, VfsFile

#: Bytes that are read, compared or copied at a time: they stay in the processor's cache.
WINDOW_BYTES = 1 << 20


def is_free(vfs: Vfs, staged: str, final: str, begins: int, size: int) -> bool:
    """Return whether the place of staged bytes has only zeros, and bytes that are staged.

    A file may have been made longer ahead, and an interrupted copy leaves some of its sectors.
    Other bytes come from another process.
    """
    source, target = vfs.open(staged, writable=False), vfs.open(final, writable=False)
    try:
        for position in range(0, size, WINDOW_BYTES):
            count = min(WINDOW_BYTES, size - position)
            there = np.frombuffer(target.pread(count, begins + position), np.uint8)
            wanted = np.frombuffer(source.pread(count, position), np.uint8)[: len(there)]
            if not ((there == 0) | (there == wanted)).all():
                return False
        return True
    finally:
        source.close()
        target.close()


def is_blank(vfs: Vfs, path: str, begins: int, size: int) -> bool:
    """Return whether a file has only zeros in a place; also if it ends before, or is missing."""
    if not vfs.exists(path):
        return True
    file = vfs.open(path, writable=False)
    try:
        windows = range(begins, begins + size, WINDOW_BYTES)
        return not any(
            np.frombuffer(file.pread(min(WINDOW_BYTES, begins + size - at), at), np.uint8).any()
            for at in windows
        )
    finally:
        file.close()


def put_behind(vfs: Vfs, final: str, pieces: Iterable[tuple[str, int, int]]) -> None:
    """Copy staged files, (path, position, size), to their positions in a file, and sync that.

    The staged ones go when all of them are durable there.
    """
    pieces = list(pieces)
    target = vfs.open(final)
    try:
        for staged, begins, size in pieces:
            _copy(vfs, staged, target, begins, size)
        target.sync()
    finally:
        target.close()
    for staged, _, _ in pieces:
        vfs.remove(staged)


def _copy(vfs: Vfs, staged: str, target: VfsFile, begins: int, size: int) -> None:
    source = vfs.open(staged, writable=False)
    try:
        for position in range(0, size, WINDOW_BYTES):
            data = source.pread(min(WINDOW_BYTES, size - position), position)
            target.pwrite(data, begins + position)
    finally:
        source.close()
