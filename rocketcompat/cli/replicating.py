"""`follow`: a mirror of a live master; `promote`: its end; `serve-ha`: a store as master."""

from __future__ import annotations

import enum
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketcompat.cli.options import Given, store_command
from tubestore.cli.kit.arguments import note, seconds
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import emit_object
from tubestore.cli.kit.text import Column

if TYPE_CHECKING:
    from rocketcompat.ha.mirror import Mirror, MirrorStatus
    from rocketcompat.ha.server import HaServer
    from rocketcompat.options import MessageStoreConfig

FOLLOW_COLUMNS = (
    Column("master"),
    Column("state"),
    Column("end", "int64"),
    Column("received_bytes", "int64"),
    Column("connections", "int64"),
    Column("up_to_date"),
    Column("dispatch_behind_bytes", "int64"),
)
PROMOTE_COLUMNS = (Column("log_end", "int64"),)
SERVE_COLUMNS = (
    Column("address"),
    Column("accepted", "int64"),
    Column("refused", "int64"),
    Column("sent_bytes", "int64"),
)
_HA_PORT = 10912
#: Seconds between two questions for the status of the mirror.
_STEP_SECONDS = 0.2
#: Seconds between two looks for what another process has appended.
_REFRESH_SECONDS = 0.05
_SYNC_MASTER = (
    "a SYNC_MASTER: with a mirror as its only slave a put waits for slaveTimeout and gets"
    " FLUSH_SLAVE_TIMEOUT, not SLAVE_NOT_AVAILABLE at once"
)

Address = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="The master's HA address; port 10912 if none.")
]


TlsCertificate = Annotated[
    str | None,
    typer.Option("--tls-cert", metavar="FILE", help="Use TLS, with this certificate (PEM)."),
]
TlsKey = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, unless FILE has it too.")
]
TlsAuthorities = Annotated[
    str | None,
    typer.Option("--tls-ca", metavar="FILE", help="Use TLS; peers need a certificate of these."),
]


class First(enum.StrEnum):
    """What an empty slave is sent."""

    LAST = "LAST"
    FULL = "FULL"


class Acknowledged(enum.StrEnum):
    """What a slave's report promises to its master."""

    NO = "no"
    PAGE_CACHE = "page_cache"
    FSYNC = "fsync"


@store_command(limit=False, address=Address)
def follow(
    given: Given,
    acknowledge: Annotated[
        Acknowledged,
        typer.Option(
            "--acknowledge",
            help="Report what was received, as a slave does; by default nothing is acknowledged.",
        ),
    ] = Acknowledged.NO,
    sync_master: Annotated[
        bool, typer.Option("--sync-master", help="Follow a SYNC_MASTER too.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="ROOT has the log of a slave of this very master."),
    ] = False,
    broker_config: Annotated[
        bool,
        typer.Option(
            "--broker-config",
            help="Take over topics, groups and offsets too; the master has to be of this package.",
        ),
    ] = False,
    slave_timeout: Annotated[
        float,
        typer.Option(
            "--slave-timeout", parser=seconds, metavar="SECONDS", help="As of the master."
        ),
    ] = 3.0,
    broker_port: Annotated[
        int | None,
        typer.Option("--broker-port", help="The broker's own port; by default the HA port less 1."),
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            "--idle-timeout", parser=seconds, metavar="SECONDS",
            help="Stop when nothing has come for so long."
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsAuthorities = None,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Report progress so often.")
    ] = 10.0,
) -> None:  # fmt: skip
    """Mirror the log of a live master. Into ROOT, with queues and index, until interrupted.

    An interrupted run goes on. Each record is verified. Meanwhile every other command reads ROOT.
    The master sends an empty ROOT its last file only. Options: -o layouts=consume_queue,index,tube.
    """
    host, port = _address_of(given.address)
    from rocketcompat.ha.mirror import Mirror
    from rocketcompat.ha.tls import client_context

    if (tls_cert or tls_key) and not tls_ca:
        raise UsageMistake("--tls-cert: --tls-ca names the authorities of the master's certificate")
    tls = client_context(tls_ca, tls_cert, tls_key) if tls_ca else None
    config = _config_of(given)
    if acknowledge is Acknowledged.NO:
        _check_role(given, host, port, broker_port, allowed=sync_master)
    with Mirror(
        given.root, host, port, config, acknowledge=acknowledge.value, take_over=take_over,
        slave_timeout=slave_timeout, tls=tls, broker_config=broker_config,
    ) as mirror, _stopped_by_signal() as stop:  # fmt: skip
        mirror.start()
        _watch(mirror, stop, idle_timeout, every)
        mirror.stop()
        failed, status = mirror.failed, mirror.status()
    if failed is not None:
        raise failed
    emit_object(_row_of(mirror, status), FOLLOW_COLUMNS, given.output)


@store_command(limit=False)
def promote(given: Given) -> None:
    """Make a mirror a store of its own. It takes messages then, as a master does.

    The store is recovered first. Afterwards `follow` continues it no longer.
    """
    from rocketcompat.ha.slave_store import SlaveRoot

    end = SlaveRoot.of(given.root, _config_of(given)).promote()
    emit_object({"log_end": end}, PROMOTE_COLUMNS, given.output)


@store_command(limit=False)
def serve_ha(
    given: Given,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where slaves connect.")
    ] = f"127.0.0.1:{_HA_PORT}",
    first: Annotated[
        First, typer.Option("--first", help="What an empty slave is sent: the last file, or all.")
    ] = First.LAST,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="NETWORK",
            help="Peers that may connect, such as 10.0.0.0/8; by default this machine alone.",
        ),
    ] = None,
    slaves: Annotated[
        int, typer.Option("--slaves", min=1, help="The most slaves that may be connected.")
    ] = 16,
    batch_size: Annotated[
        str,
        typer.Option(
            "--batch-size", metavar="SIZE", help="Bytes of the log in a frame: a number, or 64KiB."
        ),
    ] = "32KiB",
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsAuthorities = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            "--idle-timeout", parser=seconds, metavar="SECONDS",
            help="Stop when no slave has been connected for so long.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Serve a store's log to slaves. By RocketMQ's HA protocol, until interrupted.

    ROOT is only read: another process may have it open for writing. Slaves get what it appends.
    """
    import rocketcompat
    from rocketcompat.ha.role import refuse_controller_mode
    from rocketcompat.ha.server import LOOPBACK, HaServer
    from rocketcompat.ha.tls import server_context
    from rocketcompat.inspect.index_geometry import writing_config

    host, port = _address_of(listen, least=0)
    if (tls_ca or tls_key) and not tls_cert:
        raise UsageMistake("--tls-ca: --tls-cert is the master's own certificate")
    tls = server_context(tls_cert, tls_key, tls_ca) if tls_cert else None
    directory = given.directory()
    refuse_controller_mode(directory.vfs, directory.root)
    config = writing_config(directory).changed(layouts=frozenset())
    with (
        rocketcompat.open(given.root, "r", config) as store,
        HaServer(
            store, host=host, port=port, first=first.value, allow=allow or LOOPBACK,
            connections_max=slaves, batch_size=batch_size, on_poll=_now_and_then(store.refresh),
            tls=tls,
        ) as server,
        _stopped_by_signal() as stop,
    ):  # fmt: skip
        server.start()
        note(f"{given.root}: slaves connect to {host}:{server.port}")
        _watch_slaves(server, stop, idle_timeout)
        status = server.status()
    row = {
        "address": f"{host}:{server.port}", "accepted": status.accepted,
        "refused": status.refused, "sent_bytes": status.sent_bytes,
    }  # fmt: skip
    emit_object(row, SERVE_COLUMNS, given.output)


def _now_and_then(call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that makes the call, but not sooner than some ms after the last."""
    from tubestore.clock import SystemClock

    now, last = SystemClock().monotonic, [0.0]

    def wrapped() -> None:
        if now() - last[0] >= _REFRESH_SECONDS:
            call()
            last[0] = now()

    return wrapped


def _watch_slaves(server: HaServer, stop: threading.Event, idle_timeout: float | None) -> None:
    """Report slaves that come and go until the signal, or until none was there for long."""
    from tubestore.clock import SystemClock

    now = SystemClock().monotonic
    seen: dict[str, str] = {}
    busy, ended = now(), 0
    while not stop.wait(_STEP_SECONDS):
        status = server.status()
        rows = {row.peer: row.state for row in status.slaves}
        for peer, state in rows.items():
            if seen.get(peer) != state:
                note(f"slave {peer}: {state}")
        gone = status.accepted + status.refused - len(rows)
        for peer, reason in status.ended[max(0, len(status.ended) - (gone - ended)) :]:
            note(f"slave {peer}: closed: {reason}")
        busy = now() if rows or gone != ended else busy
        seen, ended = rows, gone
        if idle_timeout is not None and now() - busy >= idle_timeout:
            return


def _address_of(text: str, least: int = 1) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT or [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, str(_HA_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not least <= int(port) < 1 << 16:
        raise UsageMistake(f"{text!r} is not an address HOST:PORT")
    return host, int(port)


def _config_of(given: Given) -> MessageStoreConfig:
    """Return the options of the mirror's store: as given, and as the files there are."""
    from rocketcompat.inspect.index_geometry import writing_config
    from rocketcompat.options import MessageStoreConfig

    options = given.store_options()
    kept = {"consume_queue", "index"}
    config = MessageStoreConfig.from_camel(options)
    if any(map(os.path.isdir, config.commit_log_directories(given.root))):
        config = writing_config(given.directory())
        kept |= config.layouts
    return config if "layouts" in options else config.changed(layouts=frozenset(kept))


def _check_role(
    given: Given, host: str, port: int, broker_port: int | None, *, allowed: bool
) -> None:
    """Refuse a master that the mirror would change; warn where the role cannot be found out."""
    from rocketcompat.ha.role import broker_options

    at = broker_port if broker_port is not None else port - 1
    found = _options_in(given.conf) or broker_options(host, at)
    if found is None:
        note(
            f"the role of {given.address} is not known: no broker answers at {host}:{at}"
            f" (--broker-port). It should not be {_SYNC_MASTER}"
        )
        return
    if found.get("enableControllerMode", "").strip().lower() == "true":
        raise UsageMistake(
            f"{given.address} runs in controller mode (enableControllerMode), which has another"
            " replication protocol that is not supported"
        )
    if found.get("brokerRole", "").strip().upper() == "SYNC_MASTER":
        if not allowed:
            raise UsageMistake(f"{given.address} is {_SYNC_MASTER}. --sync-master follows it")
        note(f"{given.address} is {_SYNC_MASTER}")


def _options_in(conf: str | None) -> dict[str, str] | None:
    """Return the options of the master's configuration file; None without one or without a role."""
    if conf is None:
        return None
    import javaproperties

    with open(conf, encoding="utf-8", errors="replace") as file:
        found = dict(javaproperties.loads(file.read()))
    return found if "brokerRole" in found else None


@contextmanager
def _stopped_by_signal() -> Iterator[threading.Event]:
    """Give an event that SIGTERM sets; the command closes the store then."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(mirror: Mirror, stop: threading.Event, idle_timeout: float | None, every: float) -> None:
    """Report progress until the mirror stops, the signal comes or nothing has come for long."""
    from tubestore.clock import SystemClock

    now = SystemClock().monotonic
    shown: tuple[Any, ...] | None = None
    heard, begun = (-1, now()), False
    last_time, last_bytes = now(), 0
    while not stop.wait(_STEP_SECONDS) and mirror.failed is None:
        status, time = mirror.status(), now()
        # The first frame, or the first failure, may take a while.
        begun = begun or status.state == "following" or status.trouble is not None
        if status.received_bytes != heard[0] or not begun:
            heard = (status.received_bytes, time)
        key = (status.state == "following", status.trouble, status.config_trouble)
        if key != shown or time - last_time >= every:
            if key != shown or status.received_bytes != last_bytes:
                rate = (status.received_bytes - last_bytes) / max(time - last_time, _STEP_SECONDS)
                note(_line_of(status, rate))
            shown, last_time, last_bytes = key, time, status.received_bytes
        if idle_timeout is not None and time - heard[1] >= idle_timeout:
            return


def _line_of(status: MirrorStatus, rate: float) -> str:
    """Return a line for a person."""
    words = [status.state if status.trouble is None else f"{status.state}: {status.trouble}"]
    if status.state == "following":
        words = ["up to date" if status.up_to_date else "following"]
        words.append(f"log end {status.end}")
        words.append(f"{status.received_bytes} bytes received, {rate / 1e6:.1f} MB/s")
        words.append(f"queues {status.dispatch_behind_bytes} bytes behind")
    if status.config_trouble is not None:
        words.append(status.config_trouble)
    return ", ".join(words)


def _row_of(mirror: Mirror, status: MirrorStatus) -> dict[str, Any]:
    return {
        "master": mirror.address,
        "state": status.state,
        "end": status.end,
        "received_bytes": status.received_bytes,
        "connections": status.connections,
        "up_to_date": status.up_to_date,
        "dispatch_behind_bytes": status.dispatch_behind_bytes,
    }
