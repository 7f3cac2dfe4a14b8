"""`tubestore topics | create | change | delete`."""

from __future__ import annotations

import sys
from typing import Any

import typer

import tubestore
from tubestore.cli.kit.arguments import emit_found, given_age, note, printing
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave, UsageMistake
from tubestore.cli.kit.text import Column
from tubestore.cli.opening import note_journal, open_existing, open_or_make
from tubestore.segments.listing import find_shards
from tubestore.values import parse_size, size_text

COLUMNS = (
    Column("topic"),
    Column("partitions", "int32"),
    Column("stores", "int32"),
    Column("shards", "int32"),
    Column("entries", "int64"),
    Column("data_bytes", "size"),
    Column("max_age", "age"),
    Column("max_bytes", "size"),
)
#: Takes a bound away.
NONE = "none"


def topics(root: str, *, out: str | None, **how: Any) -> None:
    """List topics with their settings; opens the store for reading."""
    shards = find_shards(root)
    note_journal(root)
    with tubestore.open(root, mode="r") as store, printing(out, **how) as output:
        rows = []
        for name in store.topics():
            mine = [s for s in shards if s.topic == name]
            options = store.topic(name).options
            rows.append(
                {
                    "topic": name,
                    "partitions": options.partitions,
                    "stores": options.stores,
                    "shards": len(mine),
                    "entries": sum(s.entry_count for s in mine),
                    "data_bytes": sum(f.size for s in mine for f in s.data),
                    "max_age": options.max_age_ms,
                    "max_bytes": options.max_bytes,
                }
            )
        emit_found(rows, COLUMNS, output, "no topics in this store")


def create(
    root: str, topic: str, *, max_age: str | None, max_bytes: str | None, **settings: Any
) -> None:
    """Create a topic."""
    age = given_age(max_age)
    size = None if max_bytes is None else parse_size(max_bytes)
    with open_or_make(root, topic) as store:
        store.create_topic(topic, max_age=age, max_bytes=size, **settings)


def change(
    root: str,
    topic: str,
    *,
    partitions: int | None,
    stores: int | None,
    max_age: str | None,
    max_bytes: str | None,
) -> None:
    """Change a topic's settings."""
    given: dict[str, Any] = {"partitions": partitions, "stores": stores}
    given = {name: value for name, value in given.items() if value is not None}
    if max_age is not None:
        given["max_age"] = None if max_age == NONE else given_age(max_age)
    if max_bytes is not None:
        given["max_bytes"] = None if max_bytes == NONE else parse_size(max_bytes)
    if not given:
        raise UsageMistake("nothing to change: --partitions, --stores, --max-age, --max-bytes")
    with open_existing(root, topic) as store:
        store.change_topic(topic, **given)


def delete(root: str, topic: str, *, yes: bool) -> None:
    """Delete a topic, asking first."""
    with open_existing(root, topic) as store:
        shards = store.describe_topic(topic).shards
        if not yes:
            size = size_text(sum(s.data_bytes + s.index_bytes for s in shards))
            question = f"delete {topic!r}, {sum(s.messages for s in shards)} messages, {size}?"
            if not sys.stdin.isatty():
                raise UsageMistake(f"{question} There is no terminal to ask: add --yes")
            if not typer.confirm(question, err=True):
                note("nothing was deleted")
                raise Leave(EXIT_FINDINGS)
        store.delete_topic(topic)
