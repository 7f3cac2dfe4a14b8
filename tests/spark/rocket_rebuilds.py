"""Logs of which queues and index are built again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.rebuild import rebuild as rebuild_here
from rocketcompat.repair.rebuild import structures_to_build
from rocketcompat.spark.jobs.rebuild import STRUCTURES, rebuild
from tests.spark.rocket_stores import CONFIG, write_rocket_store
from tubestore.clock import SystemClock
from tubestore.core.quarantine import Quarantine

COUNT = 1500

SPLIT = 30_000

#: What a directory does not say of itself once its index is gone.
GEOMETRY = {"maxHashSlotNum": 100, "maxIndexNum": 400}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rebuilding") / "store"
    write_rocket_store(root, COUNT)
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        for number in range(60):  # delayed, prepared, rolled back, without keys, elsewhere too
            store.put_message(
                Message(
                    f"topic{number % 5}", b"x" * number, sys_flag=(0, 4, 8, 12)[number % 4],
                    delay_level=3 if number % 8 == 0 else 0, queue_id=number % 3,
                    keys=["a", "b"] if number % 3 else None,
                )
            )  # fmt: skip
    return root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def files_of(root: Path) -> dict[str, bytes]:
    """The structures' files; index files by their number, since their names are times."""
    found = {}
    for name in (*STRUCTURES, "consumequeue_ext"):
        paths = [path for path in sorted((root / name).rglob("*")) if path.is_file()]
        for number, path in enumerate(paths):
            key = str(number) if name == "index" else str(path.relative_to(root / name))
            found[f"{name}/{key}"] = written(path)
    return found


def written(path: Path) -> bytes:
    """A file's length, and its pages that are not zero: index files are large and sparse."""
    size, parts, place = path.stat().st_size, [], 0
    with path.open("rb") as file:
        while place < size:
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA) & ~4095
            except OSError:  # nothing but holes
                break
            page = os.pread(file.fileno(), 4096, place)
            if any(page):
                parts.append(b"%d:" % place + page)
            place += 4096
    return b"%d;" % size + b"".join(parts)


def expected(root: Path, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    """What one process builds of a copy."""
    copy = root.with_name(f"{root.name}-here")
    shutil.copytree(root, copy)
    directory = StoreDirectory(copy, options)
    names = structures_to_build(directory, None, STRUCTURES)
    list(rebuild_here(directory, names, clock=SystemClock(),
                      quarantine=Quarantine(directory.vfs, str(copy))))  # fmt: skip
    found = files_of(copy)
    shutil.rmtree(copy)
    return found


def run(root: Path, *structures: str, options: Any = None, **given: Any) -> Any:
    given.setdefault("max_split_bytes", SPLIT)
    return rebuild(None, str(root), structures or None, options=options, **given)


def killed_at(patching: pytest.MonkeyPatch, root: Path, owner: Any, step: str) -> None:
    """Rebuild as far as a step, which fails."""

    def killed(*_: Any) -> Any:
        raise RuntimeError("killed")

    with patching.context() as patched:
        patched.setattr(owner, step, killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(root)
