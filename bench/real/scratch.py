"""Copies to be opened: the real classes may change what they read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tubestore-interop-") as folder:
        yield Path(folder)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a store with its times (RocketMQ goes by them) and its holes.

    A log of 1 GiB may hold a kilobyte.
    """
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        for start, end in _extents(reader.fileno()):
            reader.seek(start)
            writer.seek(start)
            while start < end:
                data = reader.read(min(1 << 20, end - start))
                if not data:
                    break
                writer.write(data)
                start += len(data)
        writer.truncate(os.fstat(reader.fileno()).st_size)
    shutil.copystat(source, target)


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data."""
    end = 0
    size = os.fstat(fd).st_size
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end
