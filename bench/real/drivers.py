"""The real TubeMQ and RocketMQ store classes, as seen from a test.

    tube = TubeDriver()
    rows = tube.read(root)
    [bytes_of(row, "payload") for row in of_kind(rows, "message")]

    rocket = RocketDriver("4.9.8")
    rocket.append(root, "orders", queues=4, count=100, settings={"mappedFileSizeCommitLog": 65536})

A method is one run of a Java virtual machine. A method that only reads works on a copy, because
opening is
recovery and recovery writes; ``append``, ``open`` and the benchmarks work in place. Rows and their
fields are in ``README.md``. Constructors raise ``DriverUnavailable`` where Java, Maven or the jars
are missing, calls raise ``DriverFailed``.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.real.scratch import copy_tree, scratch_folder
from bench.real.toolchain import (
    JAVA_SOURCES,
    Driver,
    DriverFailed,
    DriverUnavailable,
    last_lines,
    prepare,
)

__all__ = [
    "DriverFailed",
    "DriverUnavailable",
    "KafkaDriver",
    "RocketBrokerDriver",
    "RocketClientDriver",
    "RocketDriver",
    "Row",
    "TubeDriver",
    "bytes_of",
    "of_kind",
]

_log = logging.getLogger(__name__)

Row = dict[str, Any]
Settings = Mapping[str, object]

TUBEMQ_VERSION = "1.2.0-incubating"
ROCKETMQ_VERSIONS = ("4.9.8", "5.3.3")
KAFKA_VERSION = "3.9.1"

CALL_SECONDS = 120
BENCH_SECONDS = 900
GRACE_SECONDS = 10
"""How long after its own watchdog a virtual machine is given before it is killed from here."""

QUIET_ROCKETMQ = f"-Drmq.logback.configurationFile={JAVA_SOURCES / 'rocketmq' / 'logback.xml'}"

QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""Half the start-up time; a benchmark does without it."""

OLD_DOORS = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang")
"""Packages of the JDK that RocketMQ reaches into to unmap its files."""


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of one kind."""
    return [row for row in rows if row["kind"] == kind]


def bytes_of(row: Row, name: str) -> bytes:
    """Return a field that is given in base64."""
    return base64.b64decode(row[name], validate=True)


class _Driver:
    """One main class with its class path."""

    main_class: str
    flags: tuple[str, ...] = ()

    def __init__(self, driver: Driver, heap: str) -> None:
        self._ready = prepare(driver)
        self._heap = heap

    def _run_on_copy(
        self, command: str, root: Path, *operands: object, timeout: float, **options: Any
    ) -> list[Row]:
        """Run a command on a copy."""
        with scratch_folder() as scratch:
            copy_tree(root, scratch / "store")
            return self._run(command, scratch / "store", *operands, timeout=timeout, **options)

    def _bench(self, command: str, root: Path, *operands: object, **options: Any) -> Row:
        """Run a command with one row as its answer, with all of the compiler."""
        return self._run(command, root, *operands, jvm=(), **options)[0]

    def _run(
        self,
        command: str,
        root: Path,
        *operands: object,
        timeout: float,
        settings: Settings | None = None,
        jvm: tuple[str, ...] = QUICK_START,
        **options: object,
    ) -> list[Row]:
        arguments = [command, str(root), *map(str, operands)]
        for name, value in (settings or {}).items():
            arguments += ["-c", f"{name}={_text(value)}"]
        arguments += [f"--{name}={_text(value)}" for name, value in options.items()]
        with scratch_folder() as scratch:
            return self._java([*jvm, *self._limits(scratch, timeout)], arguments, scratch, timeout)

    def _ask(self, command: str, cases: Iterable[Iterable[object]]) -> list[Row]:
        """Run a command over a file of cases, a line each."""
        with scratch_folder() as scratch:
            lines = ("\t".join(map(str, case)) + "\n" for case in cases)
            (scratch / "cases").write_text("".join(lines), encoding="utf-8")
            return self._run(command, scratch / "cases", timeout=CALL_SECONDS)

    def _limits(self, scratch: Path, timeout: float) -> list[str]:
        """Keep memory, time and files of a virtual machine within bounds."""
        return [
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            f"-Dinterop.seconds={max(1, int(timeout))}",
            f"-Djava.io.tmpdir={scratch}",
            f"-Duser.home={scratch}",  # log folders go there
            "-Dfile.encoding=UTF-8",
            "-Duser.timezone=UTC",
            "-Duser.language=en",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ]

    def _java(
        self, jvm: list[str], arguments: list[str], scratch: Path, timeout: float
    ) -> list[Row]:
        command = [self._ready.java, *jvm, *self.flags, "-cp", self._ready.class_path]
        output, errors = scratch / "stdout", scratch / "stderr"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            try:
                run = subprocess.run(
                    [*command, self.main_class, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    timeout=timeout + GRACE_SECONDS,
                    env={**os.environ, "LC_ALL": "C.UTF-8"},  # for names of files
                    check=False,
                )
                status: object = run.returncode
            except subprocess.TimeoutExpired:
                status = "killed: its own watchdog did not end it"
        text = last_lines(errors.read_text(errors="replace"), 25)
        call = f"{self.main_class} {' '.join(arguments)}"
        if status != 0:
            raise DriverFailed(f"{call}: exit {status}\n{text}")
        if text:  # pytest shows it with the test that fails for it
            _log.warning("%s:\n%s", call, text)
        with output.open(encoding="ascii") as lines:
            return [json.loads(line) for line in lines]


class TubeDriver(_Driver):
    """TubeMQ 1.2.0-incubating. ``settings`` are BrokerConfig's and BrokerDefMetadata's fields."""

    main_class = "TubeDriver"
    flags = ("-XX:MaxDirectMemorySize=256m",)

    def __init__(self, *, heap: str = "512m") -> None:
        super().__init__(Driver("tubemq", "copy", TUBEMQ_VERSION), heap)

    def read(
        self,
        root: Path,
        *topics: str,
        settings: Settings | None = None,
        timeout: float = CALL_SECONDS,
    ) -> list[Row]:
        """Read every partition of every store (or of some topics') to its end."""
        return self._run_on_copy("read", root, *topics, settings=settings, timeout=timeout)

    def open(
        self, root: Path, topic: str, store_id: int = 0, *, settings: Settings | None = None
    ) -> list[Row]:
        """Open a store in place and close it."""
        return self._run("open", root, topic, store_id, settings=settings, timeout=CALL_SECONDS)

    def append(
        self,
        root: Path,
        topic: str,
        store_id: int,
        count: int,
        *,
        partitions: int = 10,
        close: bool = True,
        settings: Settings | None = None,
    ) -> list[Row]:
        """Append in place.

        Without ``close`` the process ends as if killed, and what is in its caches is lost.
        """
        return self._run(
            "append",
            root,
            topic,
            store_id,
            count,
            partitions=partitions,
            close=int(close),
            settings=settings,
            timeout=CALL_SECONDS,
        )

    def bench_append(
        self,
        root: Path,
        count: int,
        body_size: int,
        partitions: int,
        *,
        payload: Path | None = None,
        settings: Settings | None = None,
        timeout: float = BENCH_SECONDS,
    ) -> Row:
        """Append to a new store ``bench-0``; return one row with the rates.

        Bodies are cut from `payload`, again and again, and put into partition after partition;
        without it they are one of random bytes.
        """
        operands = (count, body_size, partitions)
        return self._bench(
            "bench-append", root, *operands, settings=settings, timeout=timeout,
            **_given(payload=payload),
        )  # fmt: skip

    def bench_read(
        self, root: Path, topic: str, store_id: int, partitions: int, *, seconds: int = 30
    ) -> Row:
        """Read partitions in turn for at most ``seconds``; return one row with the rate."""
        operands = (topic, store_id, partitions)
        return self._bench("bench-read", root, *operands, seconds=seconds, timeout=BENCH_SECONDS)


class Replica:
    """A running master or slave of `RocketDriver.replicating`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process, self._errors = process, errors

    def ask(self, line: str) -> Row:
        """Send a command ("put N SIZE", "state", "follow HOST:PORT") and return its row."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.row()

    def row(self) -> Row:
        """Return the next row."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise DriverFailed(last_lines(self._errors.read_text(errors="replace"), 25))
        row: Row = json.loads(line)
        return row

    def close(self) -> None:
        """End it cleanly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(GRACE_SECONDS)


class RocketDriver(_Driver):
    """RocketMQ. ``settings`` are MessageStoreConfig's: give the sizes that the files have."""

    main_class = "RocketDriver"
    flags = (
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OLD_DOORS),
        *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in OLD_DOORS[1:3]),
        QUIET_ROCKETMQ,
    )

    def __init__(self, version: str, *, heap: str = "512m") -> None:
        super().__init__(Driver("rocketmq", "copy-dependencies", version), heap)
        self.version = version

    def dump(
        self, root: Path, *, settings: Settings | None = None, timeout: float = CALL_SECONDS
    ) -> list[Row]:
        """Load, start and dispatch a copy; return every message of every queue."""
        return self._run_on_copy("dump", root, settings=settings, timeout=timeout)

    def load(self, root: Path, *, settings: Settings | None = None) -> list[Row]:
        """Only load a copy."""
        return self._run_on_copy("load", root, settings=settings, timeout=CALL_SECONDS)

    def query(
        self,
        root: Path,
        topic: str,
        keys: Iterable[str],
        *,
        max_count: int = 64,
        settings: Settings | None = None,
    ) -> list[Row]:
        """Look keys up in a copy. For more than 64 answers raise ``maxMsgsNumBatch``, too."""
        return self._run_on_copy(
            "query", root, topic, *keys, max=max_count, settings=settings, timeout=CALL_SECONDS
        )

    def append(
        self,
        root: Path,
        topic: str,
        queues: int,
        count: int,
        *,
        close: bool = True,
        settings: Settings | None = None,
    ) -> list[Row]:
        """Append in place; with a count of 0, recover and close.

        Without ``close`` the process ends as if killed.
        """
        operands = (topic, queues, count)
        return self._run(
            "append", root, *operands, close=int(close), settings=settings, timeout=CALL_SECONDS
        )

    def visit(
        self,
        root: Path,
        topic: str,
        queues: int,
        count: int,
        *,
        keys: Iterable[tuple[str, str]] = (),
        close: bool = True,
        settings: Settings | None = None,
    ) -> list[Row]:
        """Open in place, return what ``dump`` does, look (topic, key) pairs up, then ``append``."""
        pairs = [text for pair in keys for text in pair]
        operands = (topic, queues, count, *pairs)
        return self._run(
            "visit", root, *operands, close=int(close), settings=settings, timeout=CALL_SECONDS
        )

    @contextmanager
    def replicating(
        self, root: Path, *, settings: Settings, timeout: float = CALL_SECONDS
    ) -> Iterator[Replica]:
        """Run a master or, with brokerRole SLAVE, a slave, in place; it ends with the block."""
        arguments = ["ha", str(root)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={_text(value)}"]
        with scratch_folder() as scratch, (scratch / "stderr").open("wb") as errors:
            jvm = [*QUICK_START, *self._limits(scratch, timeout), *self.flags]
            command = [self._ready.java, *jvm, "-cp", self._ready.class_path, self.main_class]
            process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
            with process:
                replica = Replica(process, scratch / "stderr")
                try:
                    replica.row()
                    yield replica
                    replica.close()
                finally:
                    process.kill()

    def put_bench(
        self,
        root: Path,
        count: int,
        body_size: int,
        *,
        topics: int = 1,
        queues: int = 1,
        batch: int = 1,
        threads: int = 1,
        payload: Path | None = None,
        warm: int | None = None,
        settings: Settings | None = None,
        timeout: float = BENCH_SECONDS,
    ) -> Row:
        """Put into a new store; return one row: the rates without and with dispatching.

        The n-th call puts the n-th `batch` bodies cut from `payload`, again and again, into topic
        "bench" and n modulo topics, queue by queue; without a payload all bodies are one of random
        bytes. `warm` messages are put into a store of one topic first and not counted.
        """
        operands = (count, body_size, topics, queues, batch)
        return self._bench(
            "put-bench", root, *operands, settings=settings, timeout=timeout, threads=threads,
            **_given(payload=payload, warm=warm),
        )  # fmt: skip

    def open_bench(self, root: Path, *, settings: Settings | None = None) -> Row:
        """Load and start in place, then end as if killed; one row: seconds and memory."""
        return self._run("open-bench", root, settings=settings, timeout=BENCH_SECONDS)[0]

    def rebuild_bench(self, root: Path, *, settings: Settings | None = None) -> Row:
        """As `open_bench`, with all of the compiler: for a store without its queues."""
        return self._bench("open-bench", root, settings=settings, timeout=BENCH_SECONDS)

    def read_bench(
        self, command: str, root: Path, *operands: object, settings: Settings | None = None
    ) -> Row:
        """Read a store in place; one row.

        "scan", "read TOPIC QUEUES", "query TOPIC KEYS N", or "delay N RATE" in a new store.
        """
        rows = self._run(
            f"{command}-bench", root, *operands, settings=settings, timeout=BENCH_SECONDS, jvm=()
        )
        return of_kind(rows, "bench")[0]


class RocketClientDriver(_Driver):
    """Rules of RocketMQ's consumers that need no network. A case is a row of fields."""

    main_class = "ClientDriver"
    flags = (QUIET_ROCKETMQ,)

    def __init__(self, version: str, *, heap: str = "256m") -> None:
        super().__init__(Driver("rocketclient", "copy-dependencies", version), heap)

    def ask(self, command: str, cases: Iterable[Iterable[object]]) -> list[Row]:
        """Run a command over cases; return a row for each."""
        return self._ask(command, cases)


class RocketBrokerDriver(_Driver):
    """Parts of RocketMQ's broker that need no network; 5.3.3, since 4.9.8's is not published."""

    main_class = "BrokerDriver"
    flags = (QUIET_ROCKETMQ,)

    def __init__(self, *, heap: str = "256m") -> None:
        version = ROCKETMQ_VERSIONS[-1]
        super().__init__(Driver("rocketbroker", "copy-dependencies", version), heap)

    def tables(self, root: Path, *, change: bool = False) -> list[Row]:
        """Load the tables below a root's config, change and write them if asked; in place."""
        return self._run("change" if change else "tables", root, timeout=CALL_SECONDS)

    def filter(self, cases: Iterable[Iterable[object]]) -> list[Row]:
        """Evaluate SQL92 expressions: a case is an expression and "name=value" texts."""
        return self._ask("filter", cases)


class KafkaDriver(_Driver):
    """Kafka 3.9's log (UnifiedLog) with a broker's defaults, and its DumpLogSegments."""

    main_class = "KafkaDriver"

    def __init__(self, *, heap: str = "512m") -> None:
        super().__init__(Driver("kafka", "copy-dependencies", KAFKA_VERSION), heap)

    def dump(self, root: Path, *files: str, verify: bool = False) -> str:
        """Return what DumpLogSegments prints of files; `verify`: only if indexes match logs."""
        rows = self._run_on_copy("dump", root, *files, timeout=CALL_SECONDS, verify=int(verify))
        return str(of_kind(rows, "dump")[0]["text"])

    def read(self, root: Path, topics: int, partitions: int) -> list[Row]:
        """Open the log of every partition of a copy, as after a kill; return every message."""
        return self._run_on_copy("read", root, topics, partitions, timeout=CALL_SECONDS)

    def bench(
        self,
        command: str,
        root: Path,
        count: int,
        body_size: int,
        payload: Path,
        *,
        topics: int = 1,
        partitions: int = 1,
        batch: int = 1,
        threads: int = 1,
        sync: bool = False,
        timeout: float = BENCH_SECONDS,
    ) -> Row:
        """Append to new logs, or read them, with bodies cut from a file.

        `command` is "append" or "read". The row has the rate, an HDR histogram of the calls, and
        the number and the digest of what was read back afterwards.
        """
        operands = (count, body_size, topics, partitions, batch)
        return self._bench(
            f"{command}-bench", root, *operands, timeout=timeout, threads=threads,
            sync=int(sync), payload=payload,
        )  # fmt: skip


def _given(**options: object) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
