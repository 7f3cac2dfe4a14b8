"""The prose of the project is plain English: data do not speak, and each sentence has a subject.

Prose is the pages, and of the code docstrings, comments, and strings of more than one word: help
texts and errors.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BANNED = re.compile(
    r"""\b(?:
        who | whom | whose | whoever | somebody | nobody | anybody | everybody | theirs | ours
        | vouch\w* | believ\w* | tell | tells | telling | told | say | says | saying | said
        | speak\w* | spoken | honest\w* | the\ real\ one | look(?:s|ed|ing)?\ at
        | spec\ (?:§|trap) | stand | stands | standing | stood | knows
    )\b(?!-)""",
    re.IGNORECASE | re.VERBOSE,
)
ROOMS = sorted(
    {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("tubestore", "rocketcompat", "bench")
        for path in (ROOT / package).rglob("*.py")
    }
)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "tubestore", "rocketcompat", "bench", "tests")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
CODE_IN_PAGE = re.compile(r"`[^`\n]+`")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each comment, docstring and string of more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def found(text: str) -> list[tuple[int, str]]:
    """Return (line, word) of each banned word."""
    return [(line, word) for line, said in prose(text) for word in BANNED.findall(said)]


def test_banned_words_are_found_in_comments_docstrings_and_errors_and_not_in_names() -> None:
    module = '''"""Says who.

The log knows (spec §3)."""
def told(whose):
    raise ValueError(f"nobody {whose} is there")  # look at it: a stand-in is no word
'''
    assert sorted(found(module)) == [
        (1, "Says"),
        (1, "who"),
        (3, "knows"),
        (3, "spec §"),
        (5, "look at"),
        (5, "nobody"),
    ]


@pytest.mark.gate
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_no_banned_word(room: str) -> None:
    words = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / room).glob("*.py"))
        for line, word in found(path.read_text())
    ]
    assert not words, "\n".join([f"{len(words)} words:", *words])


def words_of_page(text: str) -> list[tuple[int, str]]:
    """Return (line, word) of each banned word of a page; names in backticks are code."""
    return [
        (number, word)
        for number, line in enumerate(text.splitlines(), 1)
        for word in BANNED.findall(CODE_IN_PAGE.sub("", line))
    ]


def test_banned_words_are_found_in_a_page_and_not_in_its_names() -> None:
    page = "# Who\n\nThe log `knows` it.\n```\nrecover  # says nothing\n```\n"
    assert words_of_page(page) == [(1, "Who"), (5, "says")]


def test_all_pages_of_the_project_are_looked_through() -> None:
    assert {"README.md", "CHANGELOG.md", "tubestore/docs/decisions.md", "bench/README.md"} <= {
        *PAGES
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_banned_word(page: str) -> None:
    words = words_of_page((ROOT / page).read_text())
    found_in = [f"{page}:{line}: {word}" for line, word in words]
    assert not found_in, "\n".join([f"{len(found_in)} words:", *found_in])


@pytest.mark.parametrize("package", ["tubestore", "rocketcompat"])
def test_no_two_classes_of_a_package_have_the_same_name(package: str) -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
