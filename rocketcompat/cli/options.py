"""Options that all commands share, and the directory that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tubestore.cli.errors import UsageMistake
from tubestore.cli.output import Column

if TYPE_CHECKING:
    from rocketcompat.directory import StoreDirectory

Root = Annotated[str, typer.Argument(help="The store's root: the directory that holds commitlog/.")]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE",
        help="A store option with RocketMQ's name, such as maxHashSlotNum=5000000.",
    ),
]  # fmt: skip
ConfFile = Annotated[
    str | None, typer.Option("--conf", metavar="FILE", help="A broker's configuration file.")
]
TrustQueues = Annotated[
    bool, typer.Option("--trust-queues", help="Take the queues' files as they are: no log scan.")
]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")]
Queue = Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only this queue.")]

#: The fields of a message, as in `rocketcompat.message_rows`; kinds for the output.
MESSAGE_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("queue_offset", "int64"),
    Column("physical_offset", "int64"),
    Column("store_size", "int32"),
    Column("version", "int32"),
    Column("flag", "int32"),
    Column("sys_flag", "int32"),
    Column("born_timestamp", "int64"),
    Column("store_timestamp", "int64"),
    Column("born_host"),
    Column("store_host"),
    Column("reconsume_times", "int32"),
    Column("prepared_transaction_offset", "int64"),
    Column("body_crc", "int32"),
    Column("properties", "map"),
    Column("body", "bytes"),
    Column("msg_id"),
    Column("state"),
)


def open_directory(root: str, options: list[str] | None, conf: str | None) -> StoreDirectory:
    """Return the directory with the options of the command line over those of the file."""
    from rocketcompat.directory import StoreDirectory

    return StoreDirectory(root, {**_from_file(conf), **_from_pairs(options)})


def _from_pairs(options: list[str] | None) -> dict[str, Any]:
    pairs = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise UsageMistake(f"--option {option!r}: NAME=VALUE is expected")
        pairs[name.strip()] = value.strip()
    return pairs


def _from_file(conf: str | None) -> dict[str, Any]:
    """Return the options of a broker's file that matter for its store's files."""
    if conf is None:
        return {}
    import javaproperties

    from rocketcompat.options import MessageStoreConfig, camel_to_snake

    known = MessageStoreConfig.__dataclass_fields__
    pairs = javaproperties.loads(Path(conf).read_text(encoding="utf-8", errors="replace"))
    return {name: value for name, value in pairs.items() if camel_to_snake(name) in known}
