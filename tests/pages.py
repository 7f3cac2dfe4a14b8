"""The pages of the project: their blocks of code as programs, and their links."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import REPOSITORY

PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for folder in (".", "tubestore", "rocketcompat", "bench", "tests")
    for path in (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
)
#: Languages of blocks that run; another block is output, or shows a form.
RUN = ("python", "sh")
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
#: Only the targets of the Makefile are tried: what they do has tests of its own.
_MAKE = 'for name; do case $name in *=*) ;; *) grep -q "^$name:" {makefile} || exit 2;; esac; done'


@dataclass(frozen=True)
class Block:
    """A block of a page: what it is written in, its text, and the line of the page before it."""

    page: str
    line: int
    language: str
    text: str

    def run(self, folder: Path) -> None:
        """Run the block as a program of its own in `folder`, the current directory."""
        if self.is_file:
            file = folder / "program.py"
            file.write_text(self.text)
            _finish(self, [sys.executable, str(file)], folder)
            return
        if self.language == "python":
            place = "\n" * self.line + self.text
            exec(compile(place, self.page, "exec"), {"__name__": "__main__"})
            return
        _finish(self, ["bash", "-eu", "-c", self.text], folder)

    @property
    def is_file(self) -> bool:
        """True for a program that starts processes of its own: they import its file."""
        return self.language == "python" and '__name__ == "__main__"' in self.text


def _finish(block: Block, command: list[str], folder: Path) -> None:
    """Run a command to its end, with the commands of this checkout on its path."""
    path = os.pathsep.join([str(_commands(folder)), os.environ["PATH"]])
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert run.returncode == 0, f"{block.page}:{block.line}: {run.stdout}\n{run.stderr}"


def _commands(folder: Path) -> Path:
    """Return a directory with the commands of this checkout, under their names."""
    made = folder / ".commands"
    if not made.exists():
        made.mkdir()
        makefile = shlex.quote(str(REPOSITORY / "Makefile"))
        texts = {"make": _MAKE.format(makefile=makefile)}
        for name in ("tubestore", "rocketcompat"):
            texts[name] = f'exec {shlex.quote(sys.executable)} -m {name} "$@"'
        texts["python"] = f'exec {shlex.quote(sys.executable)} "$@"'
        for name, text in texts.items():
            (made / name).write_text(f"#!/bin/sh\n{text}\n")
            (made / name).chmod(0o755)
    return made


def blocks(page: str) -> list[Block]:
    """Return all blocks of a page in their order."""
    text = (REPOSITORY / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1].strip(), found[2])
        for found in _BLOCK.finditer(text)
    ]


def programs(page: str) -> list[Block]:
    """Return the blocks of a page that run."""
    return [block for block in blocks(page) if block.language in RUN]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, in small letters, with hyphens for spaces."""
    text = _BLOCK.sub("", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(text)
    }


def broken_links(page: str) -> Iterator[str]:
    """Yield each link of a page to a file or heading of the repository that is not there."""
    path = REPOSITORY / page
    for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", path.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target
