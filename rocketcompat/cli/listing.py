"""`dump`, `queues`, `cq`: the log and the queues as rows."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketcompat.cli.naming import check_queue
from rocketcompat.cli.options import Given, Queue, Topic, TrustQueues, store_command
from rocketcompat.cli.selecting import emit_log
from tubestore.cli.kit.arguments import emit_found
from tubestore.cli.kit.output import Summary
from tubestore.cli.kit.text import Column

QUEUE_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
)
UNIT_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("queue_offset", "int64"),
    Column("physical_offset", "int64"),
    Column("size", "int32"),
    Column("tags_code", "int64"),
    Column("state"),
    Column("messages", "int32"),
)


@store_command(bodies=True, conditions="start end topic queue tags key grep decompress")
def dump(
    given: Given,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="Begin at this physical offset.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=0, help="End before this physical offset.")
    ] = None,
) -> None:
    """List the CommitLog's records in order. What cannot be read is a row with a state."""
    emit_log(given, given.selection(start=start, end=end))


@store_command()
def queues(given: Given, trust_queues: TrustQueues = False) -> None:
    """List the queues and their offsets, as after a recovery."""
    directory = given.directory()
    from rocketcompat.inspect.dump import dump_queues
    from rocketcompat.inspect.queues import QueueViews

    emit_found(
        dump_queues(QueueViews(directory, trust=trust_queues)),
        QUEUE_COLUMNS,
        given.output,
        "no queues in this store",
        position=lambda row: {"topic": row["topic"], "queue_id": row["queue_id"]},
        summary=Summary(complete=not trust_queues),
    )


@store_command()
def cq(
    given: Given,
    topic: Topic = None,
    queue: Queue = None,
    start: Annotated[
        int, typer.Option("--from", min=0, help="First queue offset to list of each queue.")
    ] = 0,
    trust_queues: TrustQueues = False,
) -> None:
    """List the ConsumeQueue units. With missing ones from the log, and surplus ones marked.

    `messages` of a unit of a queue of inner batches is how many its record holds.
    """
    directory = given.directory()
    from rocketcompat.inspect.dump import dump_units
    from rocketcompat.inspect.queues import QueueViews

    only = (topic, queue) if topic is not None and queue is not None else None
    views = QueueViews(directory, only=only, topic=topic, trust=trust_queues)
    check_queue(directory, views.keys(), topic, queue)
    rows = (row for row in dump_units(views, start) if queue is None or row["queue_id"] == queue)
    emit_found(
        rows,
        UNIT_COLUMNS,
        given.output,
        "no units",
        position=lambda row: {name: row[name] for name in ("topic", "queue_id", "queue_offset")},
        summary=Summary(complete=not trust_queues),
    )
