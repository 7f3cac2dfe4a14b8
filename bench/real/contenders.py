"""The real classes as contenders: a virtual machine for each run, by the drivers of `java/`.

They get bodies of one size, evenly spread. A rate counts until the messages are readable.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, ClassVar

from bench.layouts.layout import Unavailable, fresh
from bench.real import layouts as real
from bench.workloads import rocket
from bench.workloads.cases import Case, Measure, Runner
from bench.workloads.sizes import MIX, Size

Start = Callable[[Case], Any]
#: Direct memory of one store of TubeMQ: two caches of messages and of entries.
_TUBEMQ_STORE_MB = 3.3
#: Each partition maps two index files; Linux allows a process 65,530 maps.
_KAFKA_PLACES = 30_000


class _Real:
    """What the real classes have in common: their work is driven, not called."""

    name = ""
    capabilities: frozenset[str] = frozenset()
    settings = ""
    #: The work that a driver does.
    drivers: ClassVar[dict[str, Start]]

    @classmethod
    def beyond(cls, work: str, size: Size) -> str | None:
        """Return the reason why a size is out of reach; None if it is not."""
        if size.body == MIX:
            return "its driver has bodies of one size"
        if size.skew != "even":
            return "its driver spreads messages evenly"
        if size.durability == "memory":
            return "its driver has no such level"
        return None

    def close(self) -> None:
        """A run leaves nothing open."""


class _RocketMQ(_Real):
    @classmethod
    def beyond(cls, work: str, size: Size) -> str | None:
        if work not in ("append", "batch") and size.topics > 1:
            return "its driver reads one topic"
        return super().beyond(work, size)


def _rocketmq(version: str) -> dict[str, Start]:
    def putting(case: Case, batch: int) -> Any:
        sync = case.durability == "fsync"
        return real.rocketmq(version, batch=batch, sync=sync, threads=case.threads)(case)

    return {
        "append": lambda case: putting(case, 1),
        "batch": lambda case: putting(case, case.batch),
        "read": rocket.real_reads(version, "read", rocket.TOPIC, lambda case: case.partitions),
        "scan": rocket.real_reads(version, "scan"),
        "by-key": rocket.real_reads(
            version, "query", rocket.TOPIC, lambda case: case.messages, rocket.ASKED, keyed=True
        ),
    }


class RocketMQ498(_RocketMQ):
    """RocketMQ 4.9.8's DefaultMessageStore; reads are of the files that `rocketcompat` wrote."""

    name = "RocketMQ 4.9.8"
    settings = "the defaults; SYNC_FLUSH at fsync; a batch, encoded before, is of one queue"
    drivers: ClassVar[dict[str, Start]] = _rocketmq("4.9.8")


class RocketMQ533(_RocketMQ):
    """RocketMQ 5.3.3's DefaultMessageStore, likewise."""

    name = "RocketMQ 5.3.3"
    settings = RocketMQ498.settings
    drivers: ClassVar[dict[str, Start]] = _rocketmq("5.3.3")


def _kafka(command: str, *, batches: bool = False) -> Start:
    """Run Kafka's log; what it gives back has to be what it was given."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = real.driver_of("KafkaDriver")
        root = fresh(case.place / "kafka")
        payload = real.payload_file(case)

        def run(messages: int) -> Measure:
            row = driver.bench(
                command,
                fresh(root),
                messages,
                case.payload.body_size,
                payload,
                topics=case.topics,
                partitions=case.partitions,
                batch=case.batch if batches else 1,
                threads=case.threads,
                sync=case.durability == "fsync",
            )
            case.observe(root)
            shutil.rmtree(root)
            stored = row.get("stored", row["messages"])
            expected = sum(map(zlib.crc32, islice(cycle(case.payload.bodies), stored)))
            if (row["readBack"], row["digest"]) != (stored, expected):
                raise Unavailable(
                    f"it gives back other messages than it took: {row['readBack']} for {stored}"
                )
            return Measure(
                row["messages"], row["calls"], row["seconds"], row["cpuSeconds"],
                memory_mb=row["peakKb"] >> 10, hdr=row["hdr"],
            )  # fmt: skip

        yield run

    return start


class Kafka(_Real):
    """Kafka's UnifiedLog 3.9, with its appends as leader, without a broker and a network."""

    name = "Kafka 3.9.1"
    settings = "the defaults; batches made within a call; reads of 1 MiB with their checksums"
    drivers: ClassVar[dict[str, Start]] = {
        "append": _kafka("append"),
        "batch": _kafka("append", batches=True),
        "read": _kafka("read", batches=True),
    }

    @classmethod
    def beyond(cls, work: str, size: Size) -> str | None:
        if size.places > _KAFKA_PLACES:
            return f"{size.places:,} partitions need {2 * size.places:,} maps of index files"
        return super().beyond(work, size)


class TubeMQ(_Real):
    """TubeMQ 1.2.0's MessageStore, which acknowledges from memory; reads of our files."""

    name = "TubeMQ 1.2.0"
    settings = "the defaults: caches of 3 MB a store, flushed at the end"
    drivers: ClassVar[dict[str, Start]] = {"append": real.tubemq_append, "read": real.tubemq_read}

    @classmethod
    def beyond(cls, work: str, size: Size) -> str | None:
        if size.durability == "fsync":
            return "it acknowledges from memory only"
        if size.topics >= 1000:
            needed = size.topics * _TUBEMQ_STORE_MB / 1000
            return f"{size.topics:,} stores need {needed:,.0f} GB of buffers"
        if size.topics > 1:
            return "its driver has one topic"
        return super().beyond(work, size)
