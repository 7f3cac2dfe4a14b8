"""What `check` reports: rows {"path", "position", "reason", "message", "severity"}.

`position` is a byte of the file at `path`, `reason` one of `REASONS`. "error" is what a correct
recovery cannot or will not mend without a loss, or what a broker takes for good; "warning" is
what a recovery mends from the log (a crash leaves such things), or what only looks strange.
"""

from __future__ import annotations

from typing import Any

from rocketcompat.inspect.queues import UNIT_STATES

Finding = dict[str, Any]

REASONS = {
    "name": "A file that no store has.",
    "size": "A file of a wrong length: a real broker refuses to start.",
    "file_missing": "The log goes on behind a file that is not there.",
    "damaged": "No sound records here, though sound ones follow: a real broker cuts the log here.",
    "misplaced": "A file behind the log's end holds the records of another place.",
    "torn": "The last record is not whole.",
    "stale": "Records that an earlier recovery cut off and left there; they may come back.",
    "unit_missing": UNIT_STATES["missing"],
    "unit_wrong": UNIT_STATES["wrong"],
    "unit_surplus": UNIT_STATES["surplus"],
    "unit_damaged": UNIT_STATES["damaged"],
    "queue_kind": "A topic of batches has ordinary queues: a real broker refuses to start.",
    "empty_queue_file": "A queue's last file is empty: a real broker makes a unit of it.",
    "unit_fill": "A unit between real ones that is of no message.",
    "index_geometry": "The number of slots is unknown, so the index was not checked.",
    "index_header": "The header does not fit the items.",
    "index_chain": "An item's chain is broken.",
    "item_surplus": "An item without a record that has such a key.",
    "item_missing": "A key of a record has no item.",
    "checkpoint": "The checkpoint is missing or has a wrong length.",
    "checkpoint_ahead": "The checkpoint names messages that are not in the log.",
    "ext_missing": "A unit points to an extension that is not there: its filter matches nothing.",
    "shard_surplus": "A shard has a record that the log does not have there.",
    "shard_only": "Records that are damaged in the log are whole in their shard, by its checksums.",
    "shard_missing": "Records of the log are not in their shard.",
    "shards_closed": "The shards do not open: what they hold was not compared with the log.",
    "half_published": "A job is recorded and not finished: a real broker must wait for `recover`.",
    "config": "A configuration file cannot be read.",
}
#: Listed findings of one kind and one file; the last one has the number of the others.
PER_FILE_MAX = 20


def finding(path: str, position: int, reason: str, message: str, severity: str) -> Finding:
    """Return a finding as a row."""
    return {
        "path": path,
        "position": position,
        "reason": reason,
        "message": message,
        "severity": severity,
    }
