"""A real standalone cluster on loopback addresses: a master and two workers, as processes.

What is waited for has a limit, and whoever waits looks whether the process that it waits for is
still there: a driver that ends too early is a failure with its last words, never a silence.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY
from tubestore.spark.kit import java

HOSTS = ("127.0.0.2", "127.0.0.3")
_MASTER = "org.apache.spark.deploy.master.Master"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "org.apache.spark.deploy.worker.Worker"
#: Seconds: of a process until it is there, and of a driver until it has ended. A busy machine
#: with two cores needs a fifth of it.
START_TIMEOUT = 120.0
DRIVER_TIMEOUT = 240.0
#: JVMs that live for half a minute are quicker without the second compiler.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


#: With the python3 of this environment: a session on a cluster names no other one.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


class Cluster:
    """Started by `start`, stopped by `stop`; everything it writes is below `home`."""

    def __init__(self, home: Path) -> None:
        import pyspark

        self.home, self._spark = home, Path(pyspark.__file__).parent
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.url = ""

    def start(self) -> None:
        """Start the master, then both workers; returns when they are registered."""
        self.start_master("127.0.0.1")
        self.add_workers(*HOSTS)

    def start_master(self, host: str) -> None:
        """Start the master alone."""
        log = self._launch("master", host, _MASTER, "--host", host)
        self.url = self._wait_for(log, r"Starting Spark master at (spark://\S+)")

    def add_far_worker(self, here: str, there: str, hidden: Path) -> None:
        """Start a worker as on another machine: with a network and mounts of its own.

        `here` and `there` are the two ends of its only cable; the directory `hidden` is empty
        for it. Needs root.
        """
        script = f"""
            mount -t tmpfs none {shlex.quote(str(hidden))}
            ip link set lo up
            until ip route | grep -q default; do sleep 0.05; done
            exec "$@"
        """
        prefix = ("unshare", "--net", "--mount", "sh", "-ec", script, "sh")
        name, end = f"worker-{there}", f"ts{os.getpid() % 100_000}"
        where = str(self.home / f"work-{there}")
        arguments = ("--host", there, "--cores", "1", "--memory", "1g", "--work-dir", where)
        log = self._launch(name, there, _WORKER, *arguments, self.url, prefix=prefix)
        process = next(process for process, path in self._processes if path == log)
        own = Path("/proc/self/ns/net").readlink()
        other = Path(f"/proc/{process.pid}/ns/net")
        wait_until(lambda: other.readlink() != own, process, log, "its network", START_TIMEOUT)
        inside = f"nsenter -t {process.pid} -n ip"
        for command in (
            f"ip link add {end} type veth peer name far netns {process.pid}",
            f"ip addr add {here}/30 dev {end}",
            f"ip link set {end} up",
            f"{inside} addr add {there}/30 dev far",
            f"{inside} link set far up",
            f"{inside} route add default via {here}",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        self._wait_for(log, r"(Successfully registered with master)")

    def add_workers(self, *hosts: str) -> None:
        """Start a worker on each host; returns when they are registered."""
        logs = []
        for host in hosts:
            where = str(self.home / f"work-{host}")
            arguments = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", where)
            logs.append(self._launch(f"worker-{host}", host, _WORKER, *arguments, self.url))
        for log in logs:
            self._wait_for(log, r"(Successfully registered with master)")

    def kill_worker(self, host: str) -> None:
        """Kill the worker on a host, with its executors."""
        found = next(one for one in self._processes if one[1].name == f"worker-{host}.log")
        end(found[0], 0)
        self._processes.remove(found)

    def _launch(
        self, name: str, host: str, main: str, *arguments: str, prefix: Sequence[str] = ()
    ) -> Path:
        log = self.home / f"{name}.log"
        environment = {
            **os.environ,
            "JAVA_HOME": java.ensure(dict(os.environ)),
            "SPARK_HOME": str(self._spark),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "SPARK_CONF_DIR": str(self.home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_IP": host,
            "PATH": PATH,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [*prefix, str(self._spark / "bin" / "spark-class"), main, "--port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._processes.append((process, log))
        return log

    def _wait_for(self, log: Path, pattern: str) -> str:
        process = next(process for process, path in self._processes if path == log)
        found: list[str] = []

        def there() -> bool:
            found.extend(re.findall(pattern, log.read_text(errors="replace")))
            return bool(found)

        wait_until(there, process, log, f"{pattern} in {log.name}", START_TIMEOUT)
        return found[0]

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        import psutil

        found = []
        for process, _ in self._processes:
            with contextlib.suppress(psutil.Error):  # it has just ended
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if _EXECUTOR in " ".join(child.cmdline()):
                            found.append(child.pid)
        return found

    def stop(self) -> None:
        """Stop the workers, then the master; whoever does not end is killed, with its children."""
        for process, _ in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process, _ in reversed(self._processes):
            end(process, 15)


class Driver:
    """A driver: a Python program in a process group of its own, what it says in files."""

    def __init__(self, home: Path, script: str, *arguments: Any, **environment: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        number = len(list(home.iterdir()))
        self._out, self._err = home / f"{number}.out", home / f"{number}.err"
        # A pipe that nobody reads would stop a driver that complains a lot.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, *map(str, arguments)],
                stdout=out,
                stderr=err,
                env={**os.environ, "PATH": PATH, "PYTHONPATH": str(REPOSITORY), **environment},
                cwd=REPOSITORY,
                start_new_session=True,
            )

    def wait_until(self, there: Callable[[], bool], what: str) -> None:
        """Wait for something that the driver does; AssertionError if it ends, or for too long."""
        wait_until(there, self.process, self._err, what, START_TIMEOUT)

    def finished(self) -> str:
        """Wait for the end; returns what it printed."""
        try:
            self.process.wait(DRIVER_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the driver did not end in {DRIVER_TIMEOUT:.0f} s\n{self.said()}"
            ) from None
        finally:
            self.kill()
        assert self.process.returncode == 0, f"exit code {self.process.returncode}\n{self.said()}"
        return self._out.read_text()

    def said(self) -> str:
        """Return the last it said."""
        return f"{self._out.read_text()}\n{self._err.read_text(errors='replace')[-3000:]}"

    def kill(self) -> None:
        """Kill it and all that it has started."""
        end(self.process, 0)


def end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait so long for the end of a process, then kill its group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def wait_until(
    there: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    what: str,
    seconds: float,
) -> None:
    """Wait until something is there; AssertionError, with the log's end, if that cannot be."""
    deadline = time.monotonic() + seconds
    while not there():
        ended = process.poll() is not None and not there()
        if ended or time.monotonic() > deadline:
            why = f"exit code {process.returncode}" if ended else f"not within {seconds:.0f} s"
            text = log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"waited for {what}: {why}\n{text}")
        time.sleep(0.05)
