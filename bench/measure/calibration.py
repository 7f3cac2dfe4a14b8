"""The same small jobs before and after each block: was the machine quiet meanwhile?"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

#: A job that takes this much longer than the median of the run was disturbed.
DISTURBED = 1.25
_REPEATS = 3
_BYTES = bytes(range(256)) * 16384


@dataclass(frozen=True)
class Calibration:
    """Seconds of a loop in Python, of a checksum of 4 MiB, of 16 writes of 1 MiB, of a sync."""

    loop: float
    checksum: float
    write: float
    sync: float

    def as_dict(self) -> dict[str, float]:
        """Return its columns."""
        return {name: round(value, 9) for name, value in asdict(self).items()}


def calibrate(place: Path) -> Calibration:
    """Run the jobs in a directory; the fastest of three runs each."""
    return Calibration(
        _fastest(_loop),
        _fastest(lambda: zlib.crc32(_BYTES)),
        _fastest(lambda: _write(place)),
        _fastest(lambda: _sync(place), 5 * _REPEATS),
    )


def _fastest(job: object, repeats: int = _REPEATS) -> float:
    assert callable(job)
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        inside = job()
        taken.append(inside if isinstance(inside, float) else time.perf_counter() - begin)
    return min(taken)


def _loop() -> None:
    total = 0
    for number in range(200_000):
        total += number & 7


def _write(place: Path) -> float:
    """Return the seconds of writes to a file that is there already."""
    path = place / "calibration"
    with path.open("wb", buffering=0) as file:
        for _ in range(2):
            file.seek(0)
            begin = time.perf_counter()
            for _ in range(16):
                file.write(_BYTES[: 1 << 20])
            seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def _sync(place: Path) -> float:
    path = place / "calibration"
    with path.open("wb", buffering=0) as file:
        file.write(_BYTES[:4096])
        begin = time.perf_counter()
        os.fdatasync(file.fileno())
        seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def disturbed(found: Calibration, earlier: Iterable[Calibration]) -> list[str]:
    """Return the jobs that took longer than is usual in this run; syncs vary too much to count."""
    known = [*earlier, found]
    return [
        name
        for name in ("loop", "checksum", "write")
        if getattr(found, name) > DISTURBED * median(getattr(one, name) for one in known)
    ]
