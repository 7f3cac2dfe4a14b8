"""What one process sees of a store: the tasks of the doctor.

Spark sends this module by value, with nothing but Python needed where it runs: a package that is
missing on an executor is a finding, and no failure. It imports the standard library alone.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass(frozen=True)
class Probe:
    """What to examine: paths on every machine, and the packages that are needed."""

    root: str
    #: The file that identifies a store of this package.
    identity: str
    #: Where a task makes a file, links and renames it, if the store has an identity.
    staging: str
    packages: tuple[str, ...]
    #: Seconds: so that the tasks spread over all executors.
    pause: float = 0.3

    def row(self, name: str) -> dict[str, Any]:
        """Return what this process sees of the store, and whether it may publish there."""
        time.sleep(self.pause)
        found: dict[str, Any] = {
            "split": name,
            "host": socket.gethostname(),
            "process": os.getppid(),
            "clock_ms": time.time_ns() // 1_000_000,
            "python": platform.python_version(),
            **{package: version_of(package) for package in self.packages},
        }
        try:
            found["directories"] = len([e for e in os.scandir(self.root) if e.is_dir()])
            found["identity"] = None
            if os.path.exists(self.identity):
                with open(self.identity, encoding="utf-8") as file:
                    found["identity"] = file.read()
        except (OSError, ValueError) as error:
            return found | {"problem": f"cannot read the store: {error}"}
        if found["identity"] is not None:
            try:
                try_writing(self.staging, name)
            except OSError as error:
                found["problem"] = f"cannot write, link and rename in the store: {error}"
        return found


def version_of(package: str) -> str:
    """Return the version of an installed package, `missing` without one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def try_writing(directory: str, name: str) -> None:
    """Do in a directory what publishing needs of a file system; leaves one file there."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, name)
    with open(f"{path}.new", "xb") as file:
        file.write(name.encode())
        file.flush()
        os.fsync(file.fileno())
    os.link(f"{path}.new", f"{path}.link")
    os.replace(f"{path}.new", path)
    os.unlink(f"{path}.link")
