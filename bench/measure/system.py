"""What the system records of a process, a directory and a device."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SECTOR = 512
_PR_SET_CHILD_SUBREAPER = 36


def reset_peak() -> None:
    """Let the peak of this process's memory begin anew, where Linux allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb(pid: int | str = "self") -> float:
    """Return the most memory of a process that was resident; 0 where the system has no record."""
    return _status_mb(pid, "VmHWM:")


def anonymous_mb(pid: int | str = "self") -> float:
    """Return the resident memory of a process that is backed by no file."""
    return _status_mb(pid, "RssAnon:")


def _status_mb(pid: int | str, name: str) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/dev/fd")) - 1


def files_and_bytes(root: Path) -> tuple[int, int]:
    """Return how many files are below a directory, and the bytes that they take on the disk."""
    count = size = 0
    stack = [str(root)]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    count += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * _SECTOR
    return count, size


def device_bytes(path: Path) -> tuple[int, int] | None:
    """Return the bytes read from and written to the device below a path; None without one."""
    number = os.stat(path).st_dev
    try:
        text = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text()
    except OSError:
        return None
    values = text.split()
    return int(values[2]) * _SECTOR, int(values[6]) * _SECTOR


def free_files(path: Path) -> int:
    """Return how many more files the file system takes."""
    return os.statvfs(path).f_ffree


def adopt_orphans() -> None:
    """Have processes below this one stay below it when their parents end, where Linux allows it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def counting_calls(pid: int) -> Iterator[dict[str, int]]:
    """Count the system calls of a process meanwhile, by name; nothing where there is no strace."""
    found: dict[str, int] = {}
    strace = shutil.which("strace")
    if strace is None:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="tubestore-bench-") as folder:
        output = Path(folder) / "calls"
        counter = subprocess.Popen(
            [strace, "-f", "-c", "-o", str(output), "-p", str(pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert counter.stderr is not None
            attached = "attached" in counter.stderr.readline()
            yield found
        finally:
            counter.send_signal(2)
            counter.wait(30)
            counter.stderr.close() if counter.stderr else None
        if attached and output.exists():
            found.update(_counted(output.read_text()))


def _counted(text: str) -> dict[str, int]:
    """Return the calls of strace's summary."""
    found: dict[str, int] = {}
    for line in text.splitlines()[2:]:
        words = line.split()
        if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
            found[words[-1]] = int(words[3])
    return found
