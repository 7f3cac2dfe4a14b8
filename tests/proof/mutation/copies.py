"""A copy of the project in which one thing is changed, and the tests that are run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.support import REPOSITORY

PACKAGES = ("tubestore", "rocketcompat")
_COPIED = (*PACKAGES, "bench", "tests", "pyproject.toml", "README.md", "CHANGELOG.md")


class Outcome(Enum):
    """What tests said of a copy."""

    PASSED = 0
    FAILED = 1
    #: The tests could not be run: the change broke an import, or the test is not there.
    BROKEN = 2
    TOOK_TOO_LONG = 3


class Copy:
    """A copy below a directory; one thread changes it and runs tests in it."""

    def __init__(self, directory: Path, source: Path = REPOSITORY) -> None:
        self.root = directory / "copy"
        self.root.mkdir()
        for name in _COPIED:
            if (source / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "results", ".*")
                shutil.copytree(source / name, self.root / name, ignore=ignored)
            elif (source / name).exists():
                shutil.copy2(source / name, self.root / name)
        self.said = ""
        self._changes = 0
        self._texts: dict[Path, str] = {}

    def files(self, where: str = "") -> Iterator[Path]:
        """Yield a file, or the modules of a directory or of all packages, relative to the root."""
        for name in [where] if where else PACKAGES:
            found = sorted((self.root / name).rglob("*.py")) or [self.root / name]
            yield from (path.relative_to(self.root) for path in found)

    def text(self, path: Path) -> str:
        """Return a file's own text."""
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text()
        return self._texts[path]

    @contextmanager
    def changed(self, texts: dict[Path, str]) -> Iterator[None]:
        """Give files other texts; they have their own again afterwards."""
        honest = {path: self.text(path) for path in texts}
        self._write(texts)
        try:
            yield
        finally:
            self._write(honest)

    def _write(self, texts: dict[Path, str]) -> None:
        for path, text in texts.items():
            self._changes += 1
            (self.root / path).write_text(text)
            # Compiled files are known by time and size: never the same time twice.
            os.utime(self.root / path, (10**9, 10**9 + self._changes))

    def run(self, tests: Sequence[str], timeout: float) -> Outcome:
        """Run tests until one fails; `said` is what pytest printed."""
        arguments = [
            "-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly",
            "-p", "no:xdist", "--hypothesis-seed=0", *tests,
        ]  # fmt: skip
        forks = self._forks
        assert forks.stdin is not None
        assert forks.stdout is not None
        print(json.dumps([arguments, timeout]), file=forks.stdin, flush=True)
        code, self.said = json.loads(forks.stdout.readline())
        if code is None:
            return Outcome.TOOK_TOO_LONG
        return Outcome(code) if code in (0, 1) else Outcome.BROKEN

    @cached_property
    def _forks(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.proof.mutation.forks"], cwd=self.root, text=True,
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTEST_ADDOPTS": ""},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        """End the process that runs the tests, if there is one, and remove the copy."""
        if "_forks" in vars(self):
            self._forks.communicate()
        shutil.rmtree(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
