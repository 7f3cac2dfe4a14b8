"""`recover`, `repair`, `rebuild`: what a crash left; damage; structures built anew."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from rocketcompat.cli.options import Given, store_command
from tubestore.cli.kit.arguments import Planned, emit_found, note
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave
from tubestore.cli.kit.output import emit_object, emit_rows
from tubestore.cli.kit.progress import watching
from tubestore.cli.kit.text import Column

if TYPE_CHECKING:
    from rocketcompat.inspect.directory import StoreDirectory

ACTION_COLUMNS = (
    Column("path", "line"),
    Column("action"),
    Column("position", "int64"),
    Column("bytes", "int64"),
    Column("message", "line"),
)
RECOVER_COLUMNS = (
    Column("job"),
    Column("log_end", "int64"),
    Column("cut_bytes", "int64"),
    Column("damaged_regions", "int64"),
)
QuarantineOption = Annotated[
    str | None,
    typer.Option(
        "--quarantine", metavar="DIR",
        help="Directory for replaced files; by default .tubestore/quarantine/<n> below the root.",
    ),
]  # fmt: skip


#: Findings that `repair` prints; `check` lists all.
_LEFT_SHOWN = 10


class StructureName(enum.StrEnum):
    """What can be built from the log."""

    CONSUMEQUEUE = "consumequeue"
    BATCHCONSUMEQUEUE = "batchconsumequeue"
    INDEX = "index"
    TUBE = "tube"


@store_command(limit=False)
def recover(
    given: Given,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up", help="Give up a job that cannot be finished; its published part stays."
        ),
    ] = False,
    quarantine: QuarantineOption = None,
) -> None:
    """Recover a store after a crash. Unfinished jobs, a torn tail, queues and index.

    Every opening for writing does the same. Afterwards a broker may open the store. With --give-up
    the staged files of a job that cannot be finished go into quarantine. With -o acceptLostLog=true
    a new log begins where the log is missing, or the log goes on without its last files; what was
    built from them goes into quarantine.
    """
    import rocketcompat
    from rocketcompat.inspect.index_geometry import writing_config
    from rocketcompat.staging.pieces import LogRecords

    directory = given.directory(lost_log=True)
    job = LogRecords(directory.vfs, directory.root).pending()
    if give_up:
        _give_up(directory, quarantine)
    config = writing_config(directory)
    with rocketcompat.open(directory.root, "w", config, background=False) as store:
        found = store.recovered
        row = {
            "job": job.job_id if job is not None else None,
            "log_end": found.log_end,
            "cut_bytes": found.cut_bytes,
            "damaged_regions": len(found.damages),
        }
    emit_object(row, RECOVER_COLUMNS, given.output)


def _give_up(directory: StoreDirectory, place: str | None) -> None:
    """Give up the job that cannot go on, if there is one."""
    from rocketcompat.files.lock import StoreLock
    from rocketcompat.staging.roll_forward import give_up_job
    from tubestore.core.quarantine import Quarantine

    lock = StoreLock(directory.vfs, directory.root)
    try:
        kept = Quarantine(directory.vfs, directory.root, place)
        text = give_up_job(directory.vfs, directory.root, kept.move)
        if text is not None:
            note(text)
    finally:
        lock.release()


@store_command(limit=False)
def repair(
    given: Given,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry it out; without it only print the plan.")
    ] = False,
    keep_bodies: Annotated[
        bool,
        typer.Option("--keep-bodies", help="Keep bodies that fail their checksum."),
    ] = False,
    quarantine: QuarantineOption = None,
) -> None:
    """Mend a store so that brokers open it without a loss. Without --apply only print the plan.

    A record that is lost gets a stand-in, so that offsets stay: reads give it the state "lost".
    Files that are replaced or removed go into quarantine first. Refused while a broker holds the
    store. Exit code 1 of a dry run: there is something to do; of --apply: `check` still finds
    something.
    """
    directory = given.directory()
    from rocketcompat.formats import LOCK_FILE
    from rocketcompat.repair.plan import plan_repair

    if not apply:
        plan = plan_repair(directory, keep_bodies=keep_bodies)
        planned = Planned()
        rows = planned.counted(action.as_row() for action in plan.actions)
        emit_found(rows, ACTION_COLUMNS, given.output, "nothing to repair")
        planned.note("rocketcompat", applied=False)
        owners = directory.vfs.lock_owners(directory.path(LOCK_FILE))
        if owners:
            text = f"process {owners[0]} writes to the store: this is its state of a moment"
            note(f"{text}, and --apply is refused")
        if planned.to_do:
            raise Leave(EXIT_FINDINGS)
        return
    from rocketcompat.files.lock import StoreLock
    from rocketcompat.repair.apply import repair as mend
    from tubestore.clock import SystemClock
    from tubestore.core.quarantine import Quarantine

    directory.check_changeable()  # to take the lock changes the store
    lock = StoreLock(directory.vfs, directory.root)
    kept = Quarantine(directory.vfs, directory.root, quarantine)
    try:
        with watching("repair", in_bytes=True) as watch:
            done = list(
                mend(directory, clock=SystemClock(), quarantine=kept, keep_bodies=keep_bodies,
                     watch=watch)
            )  # fmt: skip
        emit_found(iter(done), ACTION_COLUMNS, given.output, "nothing to repair")
        if kept.path:
            note(f"what was there before is in {kept.path}")
        _note_what_is_left(given)
    finally:
        lock.release()


def _note_what_is_left(given: Given) -> None:
    """Print findings that `check` still has and that were not accepted; leave with 1 if any."""
    from rocketcompat.check.whole import check_store
    from tubestore.cli.kit.accepted import AcceptedFindings

    accepted = AcceptedFindings(given.root)
    left = []
    for row in check_store(given.directory()):
        if (row["reason"], row["severity"]) == ("shard_missing", "warning"):
            note(f"{row['path']}: {row['message']}; the next opening for writing mends it")
        elif row not in accepted:
            left.append(row)
    for row in left[:_LEFT_SHOWN]:
        note(f"left: {row['path']}: {row['position']}: {row['message']}")
    if left:
        more = f" {len(left)} findings are left;" if len(left) > _LEFT_SHOWN else ""
        note(f"{more} `rocketcompat check` lists them, --accept acknowledges them".strip())
        raise Leave(EXIT_FINDINGS)


@store_command(limit=False)
def rebuild(
    given: Given,
    structure: Annotated[
        list[StructureName],
        typer.Argument(metavar="STRUCTURE", help="Structures to build anew from the log."),
    ],
    quarantine: QuarantineOption = None,
) -> None:
    """Build queues, index or shards anew from the log. The old files go into quarantine.

    Refused while a broker holds the store. An interrupted run goes on.
    """
    directory = given.directory()
    from rocketcompat.files.lock import StoreLock
    from rocketcompat.repair.rebuild import rebuild as build
    from tubestore.clock import SystemClock
    from tubestore.core.quarantine import Quarantine

    directory.check_changeable()  # to take the lock changes the store
    lock = StoreLock(directory.vfs, directory.root)
    try:
        kept = Quarantine(directory.vfs, directory.root, quarantine)
        names = [name.value for name in structure]
        with watching("rebuild", in_bytes=True) as watch:
            rows = list(build(directory, names, clock=SystemClock(), quarantine=kept, watch=watch))
        emit_rows(rows, ACTION_COLUMNS, given.output)
    finally:
        lock.release()
