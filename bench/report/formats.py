"""What each layout must do with files, derived from its format.

A message's bytes, system calls and places are those of steady work, the making of files apart:
`files` counts these. What was counted in a run (`--calls`, bytes on the disk, files) is beside
it in the report, and a test compares both in the recorded run.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from bench.report.costs import Format, Needed, Needs, Opening, Question

_PAGE = 4096
#: One piece that `tubestore` writes from its buffers, about; its journals are emptied when full.
_BUFFER_BYTES = 210_000
_JOURNAL_BYTES = 128 << 20
#: From so many shards on a batch goes into the journal.
_JOURNALLED_SHARDS = 8
#: Kafka: a header for each record batch, some bytes for each record, indexes every 4 KiB.
_BATCH_HEADER, _RECORD, _INDEXED_BYTES = 61, 9, 4096
_ONE_READ = 1 << 20
_SEGMENT_BYTES = 1 << 30
#: RocketMQ's recovery begins some files of 1 GiB before the end.
_RECOVERED_BYTES = 3 << 30
_AHEAD_BYTES = 64 << 20


def _journalled(asked: Question) -> bool:
    """True if `tubestore` writes a batch into its journal first."""
    return min(asked.topics, asked.batch) >= _JOURNALLED_SHARDS


def _tubestore_append(asked: Question) -> Needs:
    size = asked.body + 80
    copies = 1 if asked.durability == "memory" else 2
    pieces = max(size / _BUFFER_BYTES, 2 * asked.topics * size / _JOURNAL_BYTES)
    return Needs(copies * size, pieces, pieces)


def _tubestore_batch(asked: Question) -> Needs:
    size = asked.body + 80
    if not _journalled(asked):
        pieces = 2 * min(asked.topics, asked.batch) / asked.batch
        return Needs(size, pieces, pieces)
    pieces = 1 / asked.batch + min(1.0, 2 * asked.topics * size / _JOURNAL_BYTES)
    return Needs(2 * size, pieces, pieces)


def _queues(overhead: int, calls: float, *, shards: int = 0) -> dict[str, Needed]:
    """Return the needs of RocketMQ's layout; `calls`: of a put; `shards`: of bytes beside it."""

    def single(asked: Question) -> Needs:
        return Needs(asked.body + overhead + shards, calls, 2 if asked.places > 1 else 1)

    def batch(asked: Question) -> Needs:
        pieces = (1 + min(asked.places, asked.batch)) / asked.batch
        return Needs(asked.body + overhead + shards, pieces, pieces)

    def read(asked: Question) -> Needs:
        apart = 1.0 if asked.places > 1 else 1 / asked.page
        return Needs(asked.body + overhead, 2 / asked.page, apart)

    def scan(asked: Question) -> Needs:
        return Needs(asked.body + overhead - 20, 0, 0)

    return {"append": single, "batch": batch, "read": read, "scan": scan}


def _rolled(asked: Question) -> int:
    """Return how many segments of 1 GiB a partition of Kafka has filled."""
    return int(asked.each * (asked.body + _RECORD + _BATCH_HEADER) / _SEGMENT_BYTES)


def _kafka(calls: float, indexing: float) -> dict[str, Needed]:
    """Return the needs of a log a partition; calls of an append, and of an entry of the indexes."""

    def bytes_of(body: int, rows: float) -> float:
        size = body + _RECORD + _BATCH_HEADER / rows
        # an entry of 20 bytes in both indexes, at most one a record batch
        return size + 20 * min(1 / rows, size / _INDEXED_BYTES)

    def single(asked: Question) -> Needs:
        size = asked.body + _RECORD + _BATCH_HEADER
        entries = 1 / max(1, ceil(_INDEXED_BYTES / size))
        return Needs(bytes_of(asked.body, 1), calls + indexing * entries, 1)

    def batch(asked: Question) -> Needs:
        pieces = min(asked.places, asked.batch) / asked.batch
        size = bytes_of(asked.body, 1 / pieces)
        entries = min(1.0, size / pieces / _INDEXED_BYTES)
        return Needs(size, pieces * (calls + indexing * entries), pieces)

    def read(asked: Question) -> Needs:
        size = bytes_of(asked.body, min(asked.each, 100))
        calls = ceil(asked.page * size / _ONE_READ) / asked.page
        return Needs(size, calls, calls)

    def scan(asked: Question) -> Needs:
        size = bytes_of(asked.body, min(asked.each, 100))
        calls = max(size / _ONE_READ, 1 / asked.each)
        return Needs(size, calls, 1 / asked.each)

    return {"append": single, "batch": batch, "read": read, "scan": scan}


def _lmdb_bytes(body: int) -> float:
    """Return what a message takes in the pages of lmdb: a leaf that was split is half full."""
    node = 22 + body
    if node > _PAGE // 2:
        return 50 + _PAGE * ceil((16 + body) / _PAGE)
    return _PAGE / ((_PAGE - 16) // node / 2 + 0.5)


def _height(asked: Question) -> int:
    """Return the height of lmdb's tree: a branch has some 150 keys."""
    leaves = asked.messages * _lmdb_bytes(asked.body) / _PAGE
    height = 1
    while leaves > 1:
        leaves /= 150
        height += 1
    return height


def _lmdb() -> dict[str, Needed]:
    def single(asked: Question) -> Needs:
        height = _height(asked)
        return Needs(_lmdb_bytes(asked.body) + height * _PAGE, 0, height)

    def batch(asked: Question) -> Needs:
        leaves = min(asked.places, asked.batch) / asked.batch
        return Needs(_lmdb_bytes(asked.body) + 2 * leaves * _PAGE, 0, leaves)

    def read(asked: Question) -> Needs:
        kept = _lmdb_bytes(asked.body)
        return Needs(kept, 0, max(_height(asked) / asked.page, kept / _PAGE))

    def scan(asked: Question) -> Needs:
        kept = _lmdb_bytes(asked.body)
        return Needs(kept, 0, kept / _PAGE)

    return {"append": single, "batch": batch, "read": read, "scan": scan}


def _sqlite_bytes(body: int) -> float:
    """Return what a row takes in pages of 8 KiB; a row beyond 2 KiB goes on in pages of its own."""
    page = 2 * _PAGE
    if body > 2000:
        return body + page / 2
    return page / (page // (body + 14))


def _sqlite() -> dict[str, Needed]:
    page = 2 * _PAGE

    def single(asked: Question) -> Needs:
        # three pages into the log ahead, a header and a page each; and later into the file
        return Needs(3 * (page + 24) + _sqlite_bytes(asked.body), 12, 3)

    def batch(asked: Question) -> Needs:
        kept = _sqlite_bytes(asked.body)
        pages = min(1.0, kept / page + min(asked.places, asked.batch) / asked.batch)
        return Needs(2 * pages * page, 3 * pages + 6 / asked.batch, pages)

    def read(asked: Question) -> Needs:
        return Needs(_sqlite_bytes(asked.body), 2 / asked.page, 1 / asked.page)

    return {"append": single, "batch": batch, "read": read,
            "scan": lambda q: Needs(_sqlite_bytes(q.body), 0, 0)}  # fmt: skip


def _rocksdict() -> dict[str, Needed]:
    def size(body: int) -> int:
        return body + 25

    return {
        "append": lambda q: Needs(2 * size(q.body), 1, 0),
        "batch": lambda q: Needs(2 * size(q.body), 2 / q.batch, 0),
        # a block of some 4 KiB a read
        "read": lambda q: Needs(size(q.body), max(size(q.body) / _PAGE, 1 / q.page), 1 / q.page),
        "scan": lambda q: Needs(size(q.body), size(q.body) / _PAGE, 0),
    }


def _raw(calls: float, places: float) -> dict[str, Needed]:
    return {
        "append": lambda q: Needs(q.body, calls, places),
        "batch": lambda q: Needs(q.body, calls / q.batch, places),
        "read": lambda q: Needs(q.body, 1, 1 if q.places > 1 else 0),
    }


def _none(asked: Question) -> float:
    return 0.0


def _ahead(asked: Question) -> float:
    """Return the bytes of a log ahead: it is carried over at 64 MiB."""
    return min(_AHEAD_BYTES, asked.messages * asked.body)


_ROCKET = Format(
    "One log for all topics. A message is a record of some 100 bytes beside its body, written by "
    "one call, and a unit of 20 bytes in the file of its queue; a key adds 20 in the index. A "
    "batch is one piece of the log and a piece for each queue. A queue's messages lie between "
    "those of all others: a read goes through the units to a place of the log for each. One file "
    "a queue, besides the log's and the index's. An opening lists the queues; after a kill the "
    "last files of the log are read, and its records verified.",
    overhead=121, files=lambda q: 5 + q.places, descriptors=lambda q: 8 + q.places,
    needs=_queues(121, 2),
    opening=Opening(
        lambda q: q.places, 6.5, lambda q: 20 * q.places,
        lambda q: min((q.body + 121) * q.messages, _RECOVERED_BYTES),
        lambda q: 1.6 * min(q.messages, _RECOVERED_BYTES / (q.body + 121)),
    ),
)  # fmt: skip
_KAFKA = Format(
    "A partition is a log with two indexes. A single message is a record batch of its own with a "
    "header of 61 bytes; some 9 bytes frame a record. Both indexes get an entry for every 4 KiB. "
    "A batch of rows is split into one record batch and one write for each partition. A "
    "partition's messages lie together: a read goes from an index entry on, a MiB a call. Three "
    "files a partition, one of them open for writing. An opening loads the indexes of every "
    "partition; after a kill every last segment is read, and its checksums compared.",
    overhead=75, files=lambda q: 3 * q.places * (1 + _rolled(q)),
    descriptors=lambda q: 3 * q.places * (1 + _rolled(q)),
    needs=_kafka(1, 2),
    opening=Opening(
        lambda q: q.places, 32, lambda q: _PAGE * q.places,
        lambda q: (q.body + 10) * q.messages, lambda q: q.messages,
    ),
)  # fmt: skip


_RAW = Format(
    "One file, a write a call at its end, without headers and checksums. Where a message lies is "
    "kept in memory only: it cannot be opened again. The limit of a layout that writes each "
    "message.",
    overhead=0, files=lambda q: 1, descriptors=lambda q: 1, needs=_raw(1, 0),
    pieces=lambda q: 1,
)  # fmt: skip

FORMATS: dict[str, Format] = {
    "tubestore": Format(
        "A topic is a shard of one data and one index stream. A message is a record with a header "
        "of 52 bytes and an index entry of 28. A single message is a frame in the ring journal, "
        "which is a map, and goes to its files later in large pieces: its bytes are written "
        "twice. A batch is split by topic, not by partition, and from eight shards on journalled "
        "first. A partition is read through lists of its entries, made from the index when it is "
        "first read; its records lie between those of the topic's other partitions. Two files a "
        "topic, a third for its checkpoint, and up to 21 for all. An opening reads the list of "
        "topics, and a shard when it is used; after a kill what the journals hold is compared and "
        "given to the shards, and of the shard that is read the records after its last checkpoint "
        "are verified. Descriptors are a pool: 512, or up to half of the process's limit.",
        overhead=80, files=lambda q: 21 + 3 * q.topics, descriptors=lambda q: 30 + 2 * q.topics,
        needs={
            "append": _tubestore_append, "batch": _tubestore_batch,
            "read": lambda q: Needs(q.body + 80, 0, 1 if q.partitions > 1 else 1 / q.page),
            "scan": lambda q: Needs(q.body + 80, 0, 2 * q.topics / q.messages),
        },
        pieces=lambda q: q.topics,
        opening=Opening(
            lambda q: q.topics, 0, lambda q: 100 * q.topics + 28 * q.messages / q.topics,
            lambda q: (q.body + 80) * (min(q.messages, _JOURNAL_BYTES / (q.body + 80))
                                       + q.messages / q.topics), _none,
        ),
    ),
    "rocketcompat": _ROCKET,
    "rocketcompat-tube": replace(
        _ROCKET,
        why="As rocketcompat, and each message once more in a shard of its topic, with its "
        "properties as attributes: a second data and index stream. " + _ROCKET.why,
        overhead=306, in_pages=lambda body: 306.0 + 2 * body,
        files=lambda q: 8 + q.places + 2 * q.topics,
        descriptors=lambda q: 16 + q.places + 2 * q.topics,
    ),
    "rocketcompat-mapped": replace(
        _ROCKET,
        why="As rocketcompat; the log's files are allocated whole and written through maps: no "
        "call, and a page fault for each 4 KiB. " + _ROCKET.why,
        needs=_queues(121, 1),
    ),
    "rocketcompat-pool": replace(
        _ROCKET,
        why="As rocketcompat; a message is acknowledged in a buffer of the transient pool, which "
        "is written to the log's file later, in few large pieces. " + _ROCKET.why,
        needs=_queues(121, 1), from_memory=True,
    ),
    "kafka-format": _KAFKA,
    "lmdb": Format(
        "One B+ tree of pages of 4 KiB in one file, written through a map: no call. A message is "
        "a key of 12 bytes and a value, in a leaf that is half full after a split; a body beyond "
        "2 KiB has pages of its own. A transaction copies the path to its leaf, a page a level; a "
        "batch is sorted and changes one leaf for each partition. A key is found in as many steps "
        "as the tree is high; a partition's messages lie together. A commit syncs data, then the "
        "root. An opening reads the two roots, after a kill too.",
        overhead=28, files=lambda q: 2, descriptors=lambda q: 3, needs=_lmdb(), syncs=2,
        in_pages=_lmdb_bytes,
        opening=Opening(_none, 0, lambda q: 2 * _PAGE, _none, _none),
    ),
    "sqlite": Format(
        "One B tree of pages of 8 KiB, and a log ahead of it (WAL). A single message takes six "
        "locks and writes some three pages, each with a header, into the log ahead, which is "
        "carried over at 64 MiB: a page is written twice, for rows much smaller than a page. A "
        "batch writes each page once. A partition's rows lie together. Three files. An opening "
        "reads the log ahead.",
        overhead=14, files=lambda q: 3, descriptors=lambda q: 3, needs=_sqlite(),
        in_pages=_sqlite_bytes,
        opening=Opening(_none, 0, lambda q: _PAGE, _ahead, lambda q: _ahead(q) / (2 * _PAGE)),
    ),
    "rocksdict": Format(
        "An LSM tree: a message goes into the log ahead by one write and into memory; 64 MiB at a "
        "time are sorted into a file, and files are merged later: its bytes are written twice at "
        "least. A partition's messages lie together in each file; blocks of 4 KiB are read by a "
        "call each. A file for each 64 MiB and some for all. An opening reads the log ahead.",
        overhead=25, files=lambda q: 8 + q.messages * (q.body + 25) // (64 << 20),
        descriptors=lambda q: 12 + q.messages * (q.body + 25) // (64 << 20),
        needs=_rocksdict(),
        opening=Opening(_none, 0, lambda q: _PAGE, _ahead, lambda q: _ahead(q) / (8 * _PAGE)),
    ),
    "raw-file": _RAW,
    "raw-map": replace(
        _RAW, why="One file, allocated by 64 MiB and written through a map: no call, and a page "
        "fault for each 4 KiB. Nothing else; it cannot be opened again.", needs=_raw(0, 0),
    ),
    "random-writes": replace(
        _RAW, why="One file, a write a call into a slot at a random place: the price of places "
        "that lie apart. Nothing else; it cannot be opened again.", needs=_raw(1, 1),
    ),
    "kafka-3.9": replace(
        _KAFKA,
        why="Kafka's own classes: as kafka-format, with two calls an append and the indexes in "
        "maps of 10 MiB, so that each partition costs two maps of the 65,530 of a process. Five "
        "files a partition. " + _KAFKA.why,
        files=lambda q: q.places * (5 + 4 * _rolled(q)), descriptors=lambda q: q.places,
        needs=_kafka(2, 0),
    ),
    "rocketmq-4.9.8": replace(
        _ROCKET,
        why="RocketMQ's own classes: log, queues and index are written through maps, so that a "
        "message needs no call; another thread dispatches. Every queue keeps a map and a "
        "descriptor. " + _ROCKET.why,
        needs=_queues(121, 0), pieces=lambda q: 1,
    ),
    "rocketmq-5.3.3": replace(
        _ROCKET,
        why="RocketMQ's own classes: the log is written through maps, and a unit of a queue by a "
        "seek and a write. Every queue keeps a map and a descriptor. " + _ROCKET.why,
        needs=_queues(121, 2), pieces=lambda q: 1,
    ),
    "tubemq": Format(
        "TubeMQ's own class: a topic is one data and one index stream, as in tubestore, without a "
        "journal. A message is acknowledged in a cache of the store, 3 MB, and written with the "
        "others of it: two writes for some 2,700 messages of 1 KiB. Each store takes 3.3 MB of "
        "memory whether it is used or not. An opening reads the index of every store.",
        overhead=80, files=lambda q: 2 * q.topics, descriptors=lambda q: 2 * q.topics,
        needs={
            "append": lambda q: Needs(
                q.body + 80, 2 * (q.body + 80) / 3e6, 2 * (q.body + 80) / 3e6
            ),
            "read": lambda q: Needs(
                q.body + 80, 1 / q.page, 1 if q.partitions > 1 else 1 / q.page
            ),
        },
        pieces=lambda q: q.topics, from_memory=True,
        opening=Opening(
            lambda q: q.topics, 10, lambda q: 28 * q.messages,
            lambda q: (q.body + 80) * q.messages, _none,
        ),
    ),
}  # fmt: skip


def terms(layout: str, work: str, asked: Question) -> dict[str, float]:
    """Return how often each term occurs for a message, or for an opening, of a layout."""
    return FORMATS[layout].terms(work, asked)
