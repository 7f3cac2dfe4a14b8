"""The statements of the seeds, each with its rule in the code and the test that holds it.

`rows.txt` has a block for each rule:

    CQ-08 CQ-09: rocket_formats.the_defaults_are_rocketmq_s
    - 300_000 * CQ_UNIT.size
    + 200_000 * CQ_UNIT.size

The rows it is about, the test (a file's name without `test_`, the test's without it), and how the
rule is removed: pieces of text that stand in one place of the packages, each followed by what
replaces it; `\\n` in them is the end of a line, and `@ path` names where to look instead. A block
with `differs` gives the reason why the design is another on purpose; one with `open` says what is
not done, or is held by no test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.proof.mutation.copies import Copy

#: How many statements each group has.
COUNTS = {"DIR": 8, "CL": 15, "MSG": 28, "WR": 5, "CQ": 18, "DSP": 6, "IDX": 35, "CKP": 6,
          "REC": 15, "FLS": 11, "MEM": 6, "TSP": 8, "CLN": 7, "HA": 14, "POL": 5, "RBL": 8,
          "DEC": 11, "TUB": 33}  # fmt: skip
_HEAD = re.compile(r"([A-Z]+-\d\d(?:(?: | … )[A-Z]+-\d\d)*): (?:(differs|open): )?(.+)")


@dataclass
class Block:
    """Some rows, and what holds them."""

    rows: tuple[str, ...]
    #: `differs`, `open`, or "" for rows that a test holds.
    state: str
    #: The test, or the reason.
    said: str
    #: Where to look, what stands there, and what stands there without the rule.
    changes: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def test(self) -> tuple[str, str]:
        """Return the test's file, relative to the project, and its name."""
        module, _, name = self.said.partition(".")
        folder, _, module = module.rpartition("/")
        return f"tests/{folder + '/' if folder else ''}test_{module}.py", f"test_{name}"

    def changed(self, copy: Copy) -> dict[Path, str]:
        """Return the texts of the files without the rule; ValueError if it is not there once."""
        texts: dict[Path, str] = {}
        for where, old, new in self.changes:
            found: list[tuple[Path, str]] = []
            for path in copy.files(where):
                text = texts.get(path) or copy.text(path)
                found += [(path, text)] * text.count(old)
            if len(found) != 1:
                raise ValueError(f"{' '.join(self.rows)}: {old!r} stands at {len(found)} places")
            path, text = found[0]
            texts[path] = text.replace(old, new)
        return texts


def read_blocks(text: str) -> list[Block]:
    """Parse `rows.txt`."""
    blocks: list[Block] = []
    where = old = ""
    for line in text.splitlines():
        if line.startswith("@ "):
            where = line[2:]
        elif line.startswith("- "):
            old = line[2:].replace("\\n", "\n")
        elif line.startswith("+ "):
            blocks[-1].changes.append((where, old, line[2:].replace("\\n", "\n")))
        elif line and not line.startswith("#"):
            head = _HEAD.fullmatch(line)
            if head is None:
                raise ValueError(f"no row: {line}")
            where = ""
            blocks.append(Block(_rows(head[1]), head[2] or "", head[3]))
    return blocks


def _rows(text: str) -> tuple[str, ...]:
    rows: list[str] = []
    names = text.split()
    for place, name in enumerate(names):
        if name == "…":
            group, _, last = names[place + 1].partition("-")
            first = int(rows[-1].partition("-")[2])
            rows += [f"{group}-{number:02d}" for number in range(first + 1, int(last))]
        else:
            rows.append(name)
    return tuple(rows)
