"""`tubestore retention` and `tubestore compact`: which files would go, or become one.

With --apply they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import tubestore
from tubestore.cli.kit.arguments import below_root, given_age, is_empty, note, printing
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format, emit_rows
from tubestore.cli.kit.progress import watching
from tubestore.cli.kit.text import Column, Row
from tubestore.cli.opening import open_existing
from tubestore.disks.roots import disk_of
from tubestore.segments.listing import check_root
from tubestore.shard.compaction import MergedFiles
from tubestore.store.retention import SegmentRow
from tubestore.values import age_text, parse_size, size_text

COLUMNS = (
    Column("topic"),
    Column("store_id", "int32"),
    Column("stream"),
    Column("start", "int64"),
    Column("bytes", "int64"),
    Column("first_time", "ms"),
    Column("last_time", "ms"),
    Column("verdict"),
    Column("due", "ms"),
    Column("reason", "line"),
    Column("path", "line"),
)
_NOT_IN_TEXT = ("first_time", "path")
_MERGED = (
    Column("topic"),
    Column("store_id", "int32"),
    Column("stream"),
    Column("start", "int64"),
    Column("files", "int32"),
    Column("bytes", "int64"),
    Column("verdict"),
    Column("reason", "line"),
    Column("path", "line"),
)


class RetentionRequest(NamedTuple):
    """What the user asked for, as written."""

    topic: str | None
    max_age: str | None
    max_bytes: str | None
    grace: str | None


def retention(
    root: str, chosen: RetentionRequest, *, explain: bool, apply: bool, out: str | None, **how: Any
) -> None:
    """Print a row for each file that goes, or with `explain` for each there is."""
    if explain and apply:
        raise UsageMistake("--explain shows, --apply removes: one of them")
    if chosen.grace is not None and not apply:
        raise UsageMistake("--grace needs --apply")
    topics = None if chosen.topic is None else [chosen.topic]
    bounds = {
        "max_age": given_age(chosen.max_age),
        "max_bytes": None if chosen.max_bytes is None else parse_size(chosen.max_bytes),
    }
    grace = given_age(chosen.grace)
    apply = apply and not is_empty(root)
    with (
        _open(root, chosen.topic, apply) as store,
        printing(out, **how) as output,
    ):
        if explain:
            rows = store.explain_retention(topics, **bounds)
        else:
            rows = store.retain(topics, dry_run=not apply, **bounds)
        text = output.format is Format.TEXT
        columns = tuple(c for c in COLUMNS if not text or c.name not in _NOT_IN_TEXT)
        if rows or not text:
            emit_rows((_printed(root, row) for row in rows), columns, output)
        freed = store.empty_trash(grace) if apply and grace is not None else 0
        _note_removals(rows, apply, freed, store.options.trash_grace_ms)


def _open(root: str, topic: str | None, apply: bool) -> tubestore.MessageStoreManager:
    if apply:
        return open_existing(root, topic, background=False)
    check_root(root, disk_of(root))
    return tubestore.open(root, mode="r")


def _printed(root: str, row: SegmentRow) -> Row:
    """Return a row by the names of its columns, which are without a unit."""
    named = {name.removesuffix("_ms"): value for name, value in asdict(row).items()}
    return below_root(root, named)


def _note_removals(rows: list[SegmentRow], apply: bool, freed: int, grace_ms: int) -> None:
    going = [row for row in rows if row.verdict == "goes"]
    size = size_text(sum(row.bytes for row in going))
    if not apply:
        note(
            f"{len(going)} files with {size} would go" + ("; --apply removes them" if going else "")
        )
        return
    rest = f"; {size_text(freed)} of the trash deleted" if freed else ""
    wait = f"; the next writer deletes them in {age_text(grace_ms)}" if going and not freed else ""
    note(f"{len(going)} files with {size} removed{wait}{rest}")


def compact(
    root: str, topic: str | None, files_min: int, *, apply: bool, out: str | None, **how: Any
) -> None:
    """Print a row for each file that is made of small ones, and for damaged ones that stay."""
    apply = apply and not is_empty(root)
    with _open(root, topic, apply) as store, printing(out, **how) as output:
        topics = None if topic is None else [topic]
        rows = store.compact(topics, files_min=files_min, dry_run=True)
        if apply:
            rows = list(_merged(store, rows, files_min))
        text = output.format is Format.TEXT
        columns = tuple(c for c in _MERGED if not text or c.name != "path")
        if rows or not text:
            emit_rows((below_root(root, asdict(row)) for row in rows), columns, output)
        _note_merged(rows, apply)


def _merged(
    store: tubestore.MessageStoreManager, planned: list[MergedFiles], files_min: int
) -> Iterator[MergedFiles]:
    """Merge topic by topic; a bar counts the bytes."""
    done, total = 0, sum(row.bytes for row in planned)
    with watching("compact", in_bytes=True) as watch:
        for topic in dict.fromkeys(row.topic for row in planned):
            yield from store.compact([topic], files_min=files_min)
            done += sum(row.bytes for row in planned if row.topic == topic)
            watch(done, total)


def _note_merged(rows: list[MergedFiles], apply: bool) -> None:
    made = [row for row in rows if row.verdict == "merged"]
    left, count = len(rows) - len(made), sum(row.files for row in made)
    size = size_text(sum(row.bytes for row in made))
    text = f"{count} files with {size} {'became' if apply else 'would become'} {len(made)}"
    if left:
        text += f"; damaged, and left as they are: {left} (see `tubestore check`)"
    elif made and not apply:
        text += "; --apply merges them"
    note(text)
