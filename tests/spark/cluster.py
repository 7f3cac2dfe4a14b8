"""A real standalone cluster on loopback addresses: a master and two workers, as processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tubestore.spark import java

HOSTS = ("127.0.0.2", "127.0.0.3")
_MASTER = "org.apache.spark.deploy.master.Master"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "org.apache.spark.deploy.worker.Worker"
REPOSITORY = Path(__file__).resolve().parents[2]


class Cluster:
    """Started by `start`, stopped by `stop`; everything it writes is below `home`."""

    def __init__(self, home: Path) -> None:
        import pyspark

        self.home, self._spark = home, Path(pyspark.__file__).parent
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.url = ""

    def start(self) -> None:
        """Start the master, then the workers; returns when both are registered."""
        log = self._launch("master", "127.0.0.1", _MASTER, "--host", "127.0.0.1")
        self.url = self._wait_for(log, r"Starting Spark master at (spark://\S+)")
        for host in HOSTS:
            where = str(self.home / f"work-{host}")
            arguments = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", where)
            log = self._launch(f"worker-{host}", host, _WORKER, *arguments, self.url)
            self._wait_for(log, r"(Successfully registered with master)")

    def _launch(self, name: str, host: str, main: str, *arguments: str) -> Path:
        log = self.home / f"{name}.log"
        environment = {
            **os.environ,
            "JAVA_HOME": java.ensure(dict(os.environ)),
            "SPARK_HOME": str(self._spark),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "SPARK_CONF_DIR": str(self.home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": host,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [str(self._spark / "bin" / "spark-class"), main, "--port", "0"]
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
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if found := re.search(pattern, log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.1)
        raise TimeoutError(f"{pattern} is not in {log}:\n{log.read_text()[-2000:]}")

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        import psutil

        found = []
        for process, _ in self._processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it has just ended
                    if _EXECUTOR in " ".join(child.cmdline()):
                        found.append(child.pid)
        return found

    def stop(self) -> None:
        """Stop the workers, then the master."""
        for process, _ in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def drive(script: str, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
    """Start a driver: a Python program of its own process group."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        cwd=REPOSITORY,
        start_new_session=True,
    )


def finished(driver: subprocess.Popen[str]) -> str:
    """Wait for a driver; returns what it printed."""
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, err[-3000:]
    return out


def wait_for(path: Path) -> None:
    """Wait until somebody has made a file."""
    deadline = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made"
        time.sleep(0.05)
