"""The commands of `tubestore` about topics and retention: names, arguments, options."""

from __future__ import annotations

from typing import Annotated

import typer

from tubestore.cli.kit.arguments import (
    How,
    RootArgument,
    TopicArgument,
    TopicOption,
    printing_command,
)

Partitions = Annotated[
    int | None, typer.Option("--partitions", min=1, max=10_000, help="Partitions of each shard.")
]
Stores = Annotated[
    int | None, typer.Option("--stores", min=1, max=10_000, help="Shards of the topic.")
]
MaxAge = Annotated[
    str | None,
    typer.Option(
        "--max-age", metavar="AGE", help="Remove messages that are older: 36h, 7d, delete,168h."
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="Remove the oldest messages above this size: 64MiB, 10GB.",
    ),
]


@printing_command("format int64 out")
def topics(
    how: How,
    root: RootArgument,
) -> None:
    """List the topics of a store with their settings and sizes."""
    from tubestore.cli import topics as commands

    commands.topics(root, **how)


def create(
    root: RootArgument,
    topic: TopicArgument,
    partitions: Partitions = 1,
    stores: Stores = 1,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the topic exists with the same settings.")
    ] = False,
) -> None:
    """Create a topic, and the store if there is none."""
    from tubestore.cli import topics as commands

    commands.create(
        root,
        topic,
        partitions=partitions or 1,
        stores=stores or 1,
        max_age=max_age,
        max_bytes=max_bytes,
        exist_ok=exist_ok,
    )


def change(
    root: RootArgument,
    topic: TopicArgument,
    partitions: Partitions = None,
    stores: Stores = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
) -> None:
    """Change the given settings of a topic.

    `none` takes a bound away. Partitions and shards only rise, and more of them change where keys
    go.
    """
    from tubestore.cli import topics as commands

    commands.change(
        root, topic, partitions=partitions, stores=stores, max_age=max_age, max_bytes=max_bytes
    )


def delete(
    root: RootArgument,
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with all its messages."""
    from tubestore.cli import topics as commands

    commands.delete(root, topic, yes=yes)


@printing_command("format int64 out")
def retention(
    how: How,
    root: RootArgument,
    topic: TopicOption = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show for every file whether it would be removed, and why."),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Remove the files.")] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="AGE", help="With --apply: delete from the trash what is older."
        ),
    ] = None,
) -> None:
    """Show which files retention would remove. --apply removes them.

    By the topics' settings, or by the bounds given; --max-bytes bounds the store, or the one
    topic. Removed files wait in a trash for a while.
    """
    from tubestore.cli import retention as command

    chosen = command.RetentionRequest(topic, max_age, max_bytes, grace)
    command.retention(root, chosen, explain=explain, apply=apply, **how)


@printing_command("format int64 out progress")
def compact(
    how: How,
    root: RootArgument,
    topic: TopicOption = None,
    files_min: Annotated[
        int,
        typer.Option("--files-min", metavar="N", min=2, help="Merge so many files or more."),
    ] = 8,
    apply: Annotated[bool, typer.Option("--apply", help="Merge the files.")] = False,
) -> None:
    """Show which small files would become one. --apply merges them.

    Full files of a shard that lie side by side. Offsets and times stay. Damaged files stay as
    they are and are listed.
    """
    from tubestore.cli import retention as command

    command.compact(root, topic, files_min, apply=apply, **how)
