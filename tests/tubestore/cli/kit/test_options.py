"""The letters of options: one table for both programs."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from rocketcompat.cli import app as rocketcompat_app
from tubestore.cli.app import app as tubestore_app
from tubestore.cli.kit.options import LETTERS


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Go through the commands below one: (their words, the command)."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


COMMANDS = [
    found
    for name, app in (("tubestore", tubestore_app), ("rocketcompat", rocketcompat_app))
    for found in commands(typer.main.get_command(app), name)
]


def letters() -> Iterator[tuple[str, str, str]]:
    """Go through (command, letter, option) of all commands, the help's among them."""
    for path, command in COMMANDS:
        with click.Context(command, info_name=path) as context:
            parameters = command.get_params(context)
        for parameter in parameters:
            names = [*parameter.opts, *parameter.secondary_opts]
            for letter in (n for n in names if n.startswith("-") and len(n) == 2):
                yield path, letter, next(n for n in names if n.startswith("--"))


def test_both_programs_have_the_letters_of_the_table_and_no_others() -> None:
    found = {(letter, option) for _, letter, option in letters()} | {("-h", "--help")}
    assert found == {(letter, option) for letter, all_ in LETTERS.items() for option in all_}


def test_a_letter_with_two_options_depends_on_the_kind_of_command_only() -> None:
    by_option: dict[str, set[str]] = {}
    for path, _, option in letters():
        by_option.setdefault(option, set()).add(path)
    tails = {"tubestore tail", "rocketcompat tail"}
    assert by_option["--follow"] == by_option["--lines"] == tails
    takes_options = ("rocketcompat ", "tubestore spark ")
    assert [path for path in by_option["--option"] if not path.startswith(takes_options)] == []
    assert [path for path in by_option["--out"] if path.startswith(takes_options)] == []


def test_an_option_has_the_same_letter_in_every_command_that_gives_it_one() -> None:
    known: dict[str, set[str]] = {}
    for _, letter, option in letters():
        known.setdefault(option, set()).add(letter)
    assert {option: found for option, found in known.items() if len(found) > 1} == {}


def test_a_time_to_begin_at_is_start_in_both_programs() -> None:
    """`--begin` is what `rocketcompat` called it: taken, and not shown."""
    shown = {
        option: [
            path
            for path, command in COMMANDS
            for parameter in command.params
            if option in parameter.opts and not getattr(parameter, "hidden", False)
        ]
        for option in ("--start", "--begin")
    }
    assert shown["--begin"] == []
    assert {"tubestore read", "rocketcompat dump", "rocketcompat query"} <= {*shown["--start"]}


def test_every_command_with_a_bar_has_the_option_that_hides_it() -> None:
    have = {path for path, c in COMMANDS for p in c.params if "--progress" in p.opts}
    with_bar = {"append", "check", "copy", "dump", "publish", "read", "recover", "repair"}
    assert {f"tubestore {name}" for name in with_bar} <= have
    assert {path for path in OF_A_LOG if path not in have} == set()


def test_every_command_that_prints_can_print_to_a_file() -> None:
    have = {path for path, c in COMMANDS for p in c.params if "--out" in p.opts}
    assert {path for path in OF_A_LOG if path not in have} == set()


#: The commands of a RocketMQ store: those that take its options, without Spark's jobs.
OF_A_LOG = {
    path
    for path, command in COMMANDS
    for parameter in command.params
    if "--conf" in parameter.opts and path.startswith("rocketcompat ") and " spark " not in path
}


def test_a_command_of_a_log_is_known_by_its_options() -> None:
    assert {"rocketcompat dump", "rocketcompat check", "rocketcompat export"} <= OF_A_LOG
