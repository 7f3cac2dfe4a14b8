"""The caches in a shard's `.tubestore/`: their content (decisions.md D1).

Each has the length and digest of what it describes. If these do not fit, for example after a TubeMQ
broker has worked on the directory, it is ignored. Deleting one costs time, never data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

import xxhash

from tubestore.core.layout import Buffer, Field, Layout
from tubestore.core.state_file import parse_json

CHECKPOINT_VERSION = 1
#: The end of the reason for damage that a power cut can have left, since it was never synced.
NEVER_SYNCED = "; written before the machine restarted, and not known to be synced"
#: The beginning of the reason for damage that is a file at another one's place.
MISPLACED = "the records of another place"
#: A checkpoint has a digest of so many bytes before each end.
CHECKPOINT_DIGEST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything below both ends was verified or written by this package, and synced."""

    index_end: int
    data_end: int
    index_digest: str
    data_digest: str
    version: int = CHECKPOINT_VERSION
    #: Damage below the ends that opening found and kept: [from, to, why], data offsets.
    damages: list[tuple[int, int, str]] = field(default_factory=list)
    #: Boot of the machine in which it was written; "" in older ones.
    boot: str = ""
    #: Where the streams begin: files that were there, or were removed by retention; -1 in older
    #: ones.
    index_start: int = -1
    data_start: int = -1
    #: The name of the shard's directory; "" in older ones.
    shard: str = ""
    #: xxh3 of the other fields as JSON; "" in older ones, by which no file counts as missing.
    digest: str = ""

    def encode(self) -> bytes:
        """Return the content of the file, with its digest."""
        # Not `asdict`, which copies deeply: a store that is closed writes one a shard.
        content = {name: getattr(self, name) for name in _CHECKPOINT_FIELDS if name != "digest"}
        text = json.dumps(content)
        return f'{text[:-1]}, "digest": "{_text_digest(text)}"}}'.encode()

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        """Parse the file's content; ValueError if it is invalid or of another version."""
        content = parse_json(data)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        try:
            found = cls(**content)
        except TypeError as error:
            raise ValueError("not the fields of a checkpoint") from error
        kinds = {each.name: str(each.type).partition("[")[0] for each in fields(cls)}
        if any(type(getattr(found, name)).__name__ != kind for name, kind in kinds.items()):
            raise ValueError("fields of another kind")
        if not all(_is_damage(damage) for damage in found.damages):
            raise ValueError("no damages")
        ends = found.index_end, found.data_end
        if found.version != CHECKPOINT_VERSION or min(ends) < 0 or max(ends) >= 1 << 63:
            raise ValueError(f"not of this version: {found}")
        others = {name: value for name, value in content.items() if name != "digest"}
        if found.digest and found.digest != _text_digest(json.dumps(others)):
            raise ValueError("its digest is not that of its content")
        return found


_CHECKPOINT_FIELDS = tuple(each.name for each in fields(Checkpoint))


def _text_digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _is_damage(row: object) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != [int, int, str]:
        return False
    return bool(0 <= row[0] < row[1] < 1 << 63)


DIGESTS_MAGIC = 0x54534431  # "TSD1"
#: Bytes of a segment that share a digest.
DIGEST_BLOCK_BYTES = 1 << 20
DIGESTS_HEADER = Layout(
    "DigestsHeader",
    40,
    (
        Field("magic", "i4", "`TSD1`."),
        Field("features", "i4", "0; a reader ignores a file with any other value."),
        Field("segment_size", "i8", "Bytes of the segment described."),
        Field("content_digest", "i8", "xxh3 of what follows the header."),
        Field("block_bytes", "i4", "Bytes of a block: 1,048,576; the last one may be shorter."),
        Field("block_count", "i4", "Blocks."),
        Field("reserved", "i8", "0."),
    ),
)


def signed_digest(data: Buffer) -> int:
    """Return the xxh3 of some bytes as a signed 64-bit integer."""
    return signed(xxhash.xxh3_64_intdigest(data))


def signed(digest: int) -> int:
    """Return an unsigned 64-bit integer as the signed one of the same bits."""
    return digest - (1 << 64) if digest >> 63 else digest
