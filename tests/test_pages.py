"""The pages: every program in them runs, every link has its target, every page is in the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rocketcompat.cli import app as rocketcompat_app
from tests.pages import PAGES, Block, blocks, broken_links, programs
from tests.support import REPOSITORY
from tubestore.cli.app import app as tubestore_app

APPS = {"tubestore": tubestore_app, "rocketcompat": rocketcompat_app}

#: Pages with programs that have tests of their own: in Spark, in the laboratory.
ELSEWHERE = {"tubestore/spark/README.md", "bench/OWN.md"}
WITH_PROGRAMS = [page for page in PAGES if page not in ELSEWHERE and programs(page)]
#: Pages of readers of the site; the others are about the repository.
IN_THE_SITE = [page for page in PAGES if "/docs/" in page]
TASKS = {"tubestore/docs/tasks-library.md": 12, "tubestore/docs/tasks-operator.md": 10}


#: A command in a text: its name, and what follows up to the end of the line or of the code.
_COMMAND = re.compile(r"(?:^|`)((?:tubestore|rocketcompat) [a-z][^`\n]*)", re.MULTILINE)


def commands(page: str) -> Iterator[str]:
    """Yield each command that a page names: in blocks, and in backticks."""
    for line in _COMMAND.findall((REPOSITORY / page).read_text()):
        command = line.partition("#")[0].partition("|")[0].partition(">")[0]
        if re.fullmatch(r"[\w .,:/=@<>\"'*-]+(?:\[.*)?", command.strip()):
            yield command.partition("[")[0].strip()


def unknown_in(command: str) -> list[str]:
    """Return the words of a command line that are neither a command nor an option of it."""
    words = re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", command).split()
    place: Any = typer.main.get_command(APPS[words.pop(0)])
    while words and hasattr(place, "commands"):
        name = words.pop(0)
        if name.startswith("-"):
            break
        if name not in place.commands:
            return [name]
        place = place.commands[name]
    known = {"-h", "--help", "--version", "--install-completion", "--show-completion"}
    known.update(*([*each.opts, *each.secondary_opts] for each in place.params))
    return [word for word in words if word.startswith("-") and len(word) > 1
            and not re.match(r"-\d", word) and word.partition("=")[0] not in known]  # fmt: skip


def quick(page: str) -> bool:
    return not any(block.language == "sh" or block.is_file for block in programs(page))


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if quick(p) else pytest.mark.gate) for p in WITH_PROGRAMS],
)
def test_every_program_of_a_page_runs_and_runs_again(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of a page run in their order in one directory; each is complete."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2 if quick(page) or page == "README.md" else 1):
        for block in programs(page):
            block.run(tmp_path)


@pytest.mark.parametrize("page", [*IN_THE_SITE, "README.md", "tubestore/spark/README.md"])
def test_every_command_that_a_page_names_is_there_with_its_options(page: str) -> None:
    wrong = {command: found for command in commands(page) if (found := unknown_in(command))}
    assert wrong == {}


def test_a_command_or_option_that_is_not_there_is_found() -> None:
    assert unknown_in("tubestore check data --accept") == []
    assert unknown_in("tubestore groups reset data mailers --time -2h") == []
    assert unknown_in("tubestore verify data") == ["verify"]
    assert unknown_in("rocketcompat check store --fast") == ["--fast"]
    assert "tubestore check data --accept" in {*commands("README.md")}
    assert "rocketcompat promote MIRROR" in {*commands("rocketcompat/docs/replication.md")}


def test_the_first_program_prints_what_the_readme_shows_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = programs("README.md")[1]
    assert program.language == "python"
    shown = next(b for b in blocks("README.md") if b.line > program.line and b.language == "text")
    for _ in range(2):
        program.run(tmp_path)
        assert capsys.readouterr().out == shown.text


@pytest.mark.parametrize("page", TASKS)
def test_a_task_is_one_short_program(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    titles = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert titles == [str(number) for number in range(1, TASKS[page] + 1)]
    made = [
        block for block in programs(page) if block.line > text.count("\n", 0, text.index("## 1."))
    ]
    assert len(made) == TASKS[page]
    for block in made:
        assert len([line for line in block.text.splitlines() if line.strip()]) < 15, block


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_has_its_target(page: str) -> None:
    assert list(broken_links(page)) == []


def test_a_link_without_a_target_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pages.REPOSITORY", tmp_path)
    (tmp_path / "there.md").write_text("# A heading, here\n")
    (tmp_path / "page.md").write_text(
        "[a](there.md) [b](there.md#a-heading-here) [c](gone.md) [d](there.md#gone) [e](#gone)\n"
        "`[f](code.md)` [g](https://example.org/gone)\n```\n[h](block.md)\n```\n"
    )
    assert list(broken_links("page.md")) == ["gone.md", "there.md#gone", "#gone"]


@pytest.mark.gate
def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    block = Block("page.md", 1, "sh", "tubestore topics nowhere\necho after\n")
    with pytest.raises(AssertionError, match=r"page.md:1: \n.*nowhere: no such directory"):
        block.run(tmp_path)
    with pytest.raises(AssertionError):
        Block("page.md", 1, "sh", "make no-such-target\n").run(tmp_path)


def test_every_page_is_in_the_table_of_contents() -> None:
    """Sphinx warns of it, too; here it takes no time."""
    index = REPOSITORY / "tubestore/docs/index.md"
    named = {
        (index.parent / f"{line}.md").resolve().relative_to(REPOSITORY).as_posix()
        for block in blocks("tubestore/docs/index.md")
        for line in block.text.split()
        if block.language == "{toctree}" and not line.startswith(":")
    }
    assert {*IN_THE_SITE, "README.md", "CHANGELOG.md"} - {"tubestore/docs/index.md"} <= named


@pytest.mark.parametrize("page", [*IN_THE_SITE, "README.md"])
def test_a_block_runs_or_is_marked_as_text(page: str) -> None:
    """A command in a block without a language would be executed by no test."""
    other = {block.language for block in blocks(page)} - {"python", "sh", "text"}
    other -= {"py"} if page == "README.md" else set()  # runs in the tests of Spark
    assert {language for language in other if not language.startswith("{")} == set()
