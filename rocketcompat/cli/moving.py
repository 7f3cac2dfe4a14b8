"""`export`, `import`, `copy`, `convert`, `diff`: messages out of a store, into one, to another."""

from __future__ import annotations

import enum
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketcompat.cli.naming import check_name
from rocketcompat.cli.options import (
    MESSAGE_COLUMNS,
    Given,
    complete_topic,
    store_command,
)
from rocketcompat.cli.selecting import NO_RECORDS, check_found
from rocketcompat.formats import COMPARED_COLUMNS
from tubestore.cli.kit.arguments import note, printing
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave, UsageMistake
from tubestore.cli.kit.output import Format, Summary, emit_object, emit_rows, emit_tables
from tubestore.cli.kit.progress import watched, watching
from tubestore.cli.kit.text import Column

if TYPE_CHECKING:
    from rocketcompat.options import MessageStoreConfig

EXPORT_COLUMNS = (*MESSAGE_COLUMNS, Column("properties_text"))
DIFF_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("queue_offset", "int64"),
    Column("state"),
    Column("left", "int64"),
    Column("right", "int64"),
    Column("fields", "line"),
)
COPY_COLUMNS = (
    Column("topic"),
    Column("messages", "int64"),
    Column("left_out", "int64"),
    Column("damaged_regions", "int64"),
)
_SUFFIXES = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}


class OffsetsName(enum.StrEnum):
    """What becomes of queue offsets."""

    RENUMBER = "renumber"
    KEEP = "keep"


class TargetName(enum.StrEnum):
    """What a store is copied to."""

    ROCKETMQ = "rocketmq"
    TUBESTORE = "tubestore"


def _format_of(path: str) -> Any:
    """Return the format of a file, by its name."""
    found = _SUFFIXES.get(Path(path).suffix)
    if found is None:
        raise UsageMistake(f"{path}: its name ends in none of {', '.join(_SUFFIXES)}")
    return found


#: Options for the place of a source's log.
_LOG_PATHS = ("storePathCommitLog", "readOnlyCommitLogStorePaths", "multiPathSplitter")


@store_command(limit=False, bodies=True, conditions="start end topic queue tags key grep")
def export(
    given: Given,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help=".jsonl, .csv, .parquet or .arrow.")
    ],
) -> None:
    """Write messages to a file. It can be edited and imported again.

    With --text the bodies in .jsonl are readable, where they are UTF-8. What cannot be read of the
    log is left out: exit code 1.
    """
    kind = Format(_format_of(out))
    directory = given.directory()
    from rocketcompat.transfer.exchange import export_tables

    damaged: list[Any] = []
    wanted, found = given.selection(), Summary()
    tables = export_tables(directory, wanted, damaged.append)
    shown = given.output
    with printing(out, kind, shown.int64, None, shown.summary, shown.text) as output:
        if kind in (Format.ARROW, Format.PARQUET):
            emit_tables(tables, EXPORT_COLUMNS, output, summary=found)
        else:
            rows = (row for table in tables for row in table.to_pylist(maps_as_pydicts="strict"))
            emit_rows(rows, EXPORT_COLUMNS, output, summary=found)
        check_found(directory, wanted, found)
    note(f"{found.rows:,} messages in {out}" if found.rows else NO_RECORDS)
    if damaged:
        left_out = f"left out: damaged regions of the log: {len(damaged)}"
        note(f"{left_out}; `rocketcompat check` lists them")
        raise Leave(EXIT_FINDINGS)


@store_command(limit=False)
def import_(
    given: Given,
    files: Annotated[
        list[str], typer.Argument(metavar="FILES", help=".jsonl, .csv, .parquet or .arrow files.")
    ],
    offsets: Annotated[
        OffsetsName,
        typer.Option(
            "--offsets",
            help="Offsets are given anew, or kept with their times (into a new store only).",
        ),
    ] = OffsetsName.RENUMBER,
) -> None:
    """Put messages from files into a store. It is made if it is missing."""
    kinds = [_format_of(path) for path in files]
    config = _config(given)
    from rocketcompat.transfer.exchange import check_of, import_tables
    from rocketcompat.transfer.files import read_tables
    from tubestore.clock import SystemClock
    from tubestore.core.vfs import OsVfs

    keep = offsets is OffsetsName.KEEP
    named = list(zip(files, kinds, strict=True))
    check = check_of(config, keep=keep)
    files_there = [(p, kind) for p, kind in named if not os.path.exists(p) or os.path.isfile(p)]
    checked = (table for path, kind in files_there for table in read_tables(path, kind, check))
    # All of them are checked before the first byte is written.
    rows = sum(table.num_rows for table in watched(checked, "checked", _rows_of))
    found = (table for path, kind in named for table in read_tables(path, kind, check))
    tables = watched(found, "put", _rows_of, rows if files_there == named else None)
    done = import_tables(tables, given.root, config, keep=keep, vfs=OsVfs(), clock=SystemClock())
    emit_object(done, (Column("messages", "int64"), Column("left_out", "int64")), given.output)


def _rows_of(table: Any) -> int:
    """Return how many messages a table has, for a bar."""
    return int(table.num_rows)


def _config(given: Given) -> MessageStoreConfig:
    """Return the options for a store that is written: its own, if it is there."""
    from rocketcompat.inspect.index_geometry import writing_config
    from rocketcompat.options import MessageStoreConfig

    config = MessageStoreConfig.from_camel(given.store_options())
    if any(map(os.path.isdir, config.commit_log_directories(given.root))):
        return writing_config(given.directory())
    return config.changed(layouts=frozenset({"consume_queue", "index"}))


@store_command(limit=False, conditions="start end queue tags key grep")
def copy(
    given: Given,
    source: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic),
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to put into.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ROOT", help="The store of TARGET, if another; made if new."),
    ] = None,
) -> None:
    """Put the messages of a topic into another one.

    All, or a replay of some time. Queues, properties, flags and the producers' times stay; offsets
    and store times are new. Lost and damaged messages are left out: exit code 1. Messages that were
    copied before are put again. Options are of the store with TARGET, except for log paths.
    """
    import rocketcompat
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.transfer.copying import copied_of_none, copy_messages

    written = given if to is None else replace(given, root=to)
    directory = given.directory()
    if to is not None:
        paths = {name: v for name, v in given.store_options().items() if name in _LOG_PATHS}
        watching = directory.watching
        directory = StoreDirectory(given.root, paths)
        directory.watching = watching
    wanted = given.selection(topic=source)
    done = copied_of_none(directory, wanted)
    if done is not None:  # no store is made
        check_name(directory, source)
    else:
        with rocketcompat.open(written.root, "w", _config(written), background=False) as store:
            if to is None:  # no message that this copy puts
                wanted = replace(wanted, end=store.max_physical_offset)
            done = copy_messages(directory, wanted, store, target)
    emit_object({"topic": target, **done._asdict()}, COPY_COLUMNS, given.output)
    if done.left_out or done.damaged_regions:
        raise Leave(EXIT_FINDINGS)


@store_command(limit=False)
def convert(
    given: Given,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new directory.")],
    to: Annotated[
        TargetName, typer.Option("--to", help="Kind of the new store.")
    ] = TargetName.ROCKETMQ,
) -> None:
    """Copy a store into another form. Options are the copy's, except for log paths.

    A RocketMQ store with other file sizes (--option mappedFileSizeCommitLog=N), a BoltMQ store
    to RocketMQ's, a log to tubestore shards, or tubestore shards to a RocketMQ store. A copy
    that was interrupted goes on where it was.
    """
    from rocketcompat.formats import COMMIT_LOG_DIRECTORY
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.transfer.convert import copy_store, from_tubestore, to_tubestore
    from tubestore.cli.kit.arguments import is_empty
    from tubestore.clock import SystemClock
    from tubestore.errors import NotAStore

    options = given.store_options()
    paths = {name: options.pop(name) for name in _LOG_PATHS if name in options}
    is_log = bool(paths) or os.path.isdir(os.path.join(given.root, COMMIT_LOG_DIRECTORY))
    if os.path.abspath(target).startswith(os.path.join(os.path.abspath(given.root), "")):
        raise NotAStore(target, "lies in the store that it is made of; a new directory is needed")
    of_log = to is TargetName.TUBESTORE or is_log
    with watching("convert", in_bytes=of_log) as watch:
        if to is TargetName.TUBESTORE:
            done = to_tubestore(given.directory(), target, clock=SystemClock(), watch=watch)
        elif is_log:
            source = StoreDirectory(given.root, paths)
            done = copy_store(source, target, options, clock=SystemClock(), watch=watch)
        else:
            if is_empty(given.root):
                raise NotAStore(given.root, "neither a RocketMQ store nor shards: it is empty")
            done = from_tubestore(given.root, target, options, watch=watch)
    names = ("records", "bytes", "left_out")
    emit_object(done, tuple(Column(name, "int64") for name in names), given.output)


def complete_field(context: typer.Context, incomplete: str) -> list[str]:
    """Return the fields that a comparison compares and that begin so; for the shell."""
    return sorted(name for name in COMPARED_COLUMNS if name.startswith(incomplete))


@store_command()
def diff(
    given: Given,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The root of the other store.")],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="FIELD",
            help="Do not compare this field; may be repeated.",
            autocompletion=complete_field,
        ),
    ] = None,
) -> None:
    """Compare the messages of two stores, queue by queue. Exit 1 if they differ."""
    from rocketcompat.inspect.diff import diff as compare
    from rocketcompat.inspect.directory import StoreDirectory

    for name in ignore or ():
        if name not in COMPARED_COLUMNS:
            there = ", ".join(COMPARED_COLUMNS)
            raise UsageMistake(f"--ignore {name}: not a compared field: {there}")
    directory, second = given.directory(), StoreDirectory(other)
    second.watching = directory.watching
    rows = compare(directory, second, ignore=ignore or ())
    found = emit_rows(
        rows, DIFF_COLUMNS, given.output,
        position=lambda row: {n: row[n] for n in ("topic", "queue_id", "queue_offset")},
    )  # fmt: skip
    if found.rows or found.truncated:
        raise Leave(EXIT_FINDINGS)
    note("no difference found")
