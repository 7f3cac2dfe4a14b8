"""What every part of the proof runs in, so that a state costs little and is the same each time."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rocketcompat.shards.follower import TubeLayout
from tubestore.options import StoreOptions
from tubestore.record.layouts import INDEX_ENTRY

IDENTITY = "00000000-0000-4000-8000-000000000000"
#: Shards of the full stack: so small that a dozen messages roll their files.
SMALL_SHARDS = StoreOptions(segment_size_bytes=900, index_segment_size_bytes=6 * INDEX_ENTRY.size)


class _NotInstalled:
    """Says at once that a package is missing.

    pyarrow asks for these two again and again where they are not installed, and each time
    Python looks for them in every directory: a third of the time of a small read.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("pandas", "dateutil") and name not in sys.modules:
            raise ModuleNotFoundError(name)


def _identity() -> str:
    return IDENTITY


def _small_shards(root: str, **settings: Any) -> TubeLayout:
    return TubeLayout(root, **{**settings, "options": SMALL_SHARDS})


@contextlib.contextmanager
def quick_and_quiet() -> Iterator[None]:
    """Spare thousands of recoveries their log lines and pyarrow's searches.

    Every store that is made has the same identity, so that states compare. Frames of a ring are
    taken in columns and one by one, and get room in steps: its segments are too small for both.
    Two shards are synced by one call for the file system: a run has only a few.
    """
    finders = [_NotInstalled(), *sys.meta_path]
    with (
        mock.patch.object(sys, "meta_path", finders),
        mock.patch("tubestore.store.directory.uuid", SimpleNamespace(uuid4=_identity)),
        mock.patch("tubestore.journal.ring_pieces._FEW", 1),
        mock.patch("tubestore.disks.file_syncs._SYNCED_EACH_MAX", 1),
        mock.patch("tubestore.journal.ring._STEP_BYTES_MIN", 200),
        mock.patch("rocketcompat.store.structures.TubeLayout", _small_shards),
    ):
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
