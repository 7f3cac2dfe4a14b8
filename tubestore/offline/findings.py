"""What `check` reports: the reasons, and one finding.

| where | what is verified |
| --- | --- |
| `.tubestore/` of the store | state files: readable, of this version; jobs half published |
| a shard's directory | names, lengths, that segments touch (also those still staged by a job) |
| index and data | every entry against its record, checksums, every byte of data |
| sealed files | that they match their digests |
| `.tubestore/` of a shard | caches: whether they describe the files that are there |
"""

from __future__ import annotations

from dataclasses import dataclass

from tubestore.segments.inspection import Reason

#: Every value of `reason`: its severity and what it means. "warning": unusual, nothing is lost.
REASONS: dict[Reason, tuple[str, str]] = {
    Reason.BAD_STATE: ("error", "a file in .tubestore/ is unreadable or of another version"),
    Reason.FOREIGN_NAME: ("error", "a segment's suffix and no number: a real broker does not open"),
    Reason.NAME_FORM: ("warning", "a segment's name that is not 20 ASCII digits; it opens"),
    Reason.GAP: ("error", "a segment does not start where the one before ends; nothing opens it"),
    Reason.OVERLAP: ("error", "a segment starts inside the one before; nothing opens it"),
    Reason.UNREADABLE: ("error", "the operating system refuses to read a file"),
    Reason.PARTIAL_ENTRY: ("error", "an index file ends in a part of an entry"),
    Reason.BAD_ENTRY: ("error", "an index entry that no record can have, or not its record's"),
    Reason.ENTRY_DIFFERS: ("error", "entry and record contradict each other; one is damaged"),
    Reason.OWN_OFFSET: ("warning", "a record names another index offset than its entry has"),
    Reason.MISSING: ("error", "an index entry points to bytes that no data file has"),
    Reason.MISSING_FILE: ("error", "files, their ends or a shard are gone that are recorded"),
    Reason.MISPLACED: ("error", "a file or directory holds the records of another one's place"),
    Reason.HIDDEN: (
        "warning",
        "intact messages before the first index entry: an index file is missing, or TubeMQ's "
        "retention removed it before the data",
    ),
    Reason.BAD_RECORD: ("error", "token or length of a record are damaged"),
    Reason.BAD_CHECKSUM: ("error", "the payload of a record is damaged"),
    Reason.BAD_ATTRIBUTES: ("warning", "the attribute length is impossible: sent like that"),
    Reason.UNINDEXED: ("error", "intact records without entries: opening adds them"),
    Reason.UNREFERENCED: ("error", "bytes between records that no entry points to"),
    Reason.HALF_PUBLISHED: (
        "error",
        "a job is recorded, its files are not all in place: a real broker must wait",
    ),
    Reason.JOURNAL: (
        "warning",
        "a killed process left messages in the journal, or output of a group that is in no topic"
        " yet: open for writing before a real broker does",
    ),
    Reason.JOURNAL_DAMAGED: (
        "error",
        "a damaged frame of the journal: messages that only it held are lost, their offsets stay",
    ),
    Reason.STALE_CACHE: ("warning", "a cache that does not describe the files: it is ignored"),
    Reason.DIGEST_DIFFERS: (
        "error",
        "a sealed file has changed since: bits that only its digests show; nothing mends them",
    ),
    Reason.NEVER_SYNCED: (
        "warning",
        "a hole that a power cut left in what was not synced yet; opening found and kept it",
    ),
    Reason.TORN: ("error", "bytes behind the last record: an unfinished write; opening cuts them"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: the file, the byte in it, and why."""

    path: str
    position: int
    reason: Reason
    message: str
    #: True if it is at the end of a stream, where a writer may be at work.
    at_end: bool = False

    @property
    def severity(self) -> str:
        """Either "error" or "warning"."""
        return REASONS[self.reason][0]

    @property
    def identity(self) -> tuple[str, int, Reason]:
        """The values by which a second look recognizes the finding."""
        return self.path, self.position, self.reason

    def as_row(self) -> dict[str, str | int]:
        """Return the row that the command line prints."""
        return {
            "path": self.path,
            "position": self.position,
            "reason": str(self.reason),
            "message": self.message,
            "severity": self.severity,
        }
