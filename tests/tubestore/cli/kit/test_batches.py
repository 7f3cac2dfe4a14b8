"""Arrow batches are printed as they come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import tubestore
from tests.support.tube_cli import ENVIRONMENT, Cli
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


def test_a_run_reports_how_many_messages_there_were(
    cli: Cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int | None]] = []

    @contextmanager
    def watching(label: str) -> Iterator[Callable[[int, int | None], None]]:
        assert label == "messages"
        yield lambda done, total: calls.append((done, total))

    monkeypatch.setattr("tubestore.cli.kit.progress.watching", watching)
    assert cli("read", root, "t", "-f", "jsonl", "-o", tmp_path / "out").code == 0
    assert calls[-1] == (1000, None)


@pytest.mark.gate
def test_memory_stays_flat_over_a_store_larger_than_the_bound(tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "s") as store:
        topic = store.create_topic("t", partitions=2)
        bodies = pa.array([b"x" * 4000] * 5000, pa.large_binary())
        for _ in range(6):
            topic.append_batch(pa.table({"body": bodies}))
    limited = (
        "import resource, sys; sys.argv = ['tubestore', *sys.argv[1:]]\n"
        "from tubestore.cli import main\n"
        "try: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    peaks = []
    for limit in ("100", "30000"):
        command = [sys.executable, "-c", limited, "dump", str(tmp_path / "s"), "-n", limit]
        command += ["--format", "csv", "-o", "/dev/null"]
        result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
        peaks.append(int(result.stderr.split()[-1]))
    unit = 1 if sys.platform == "darwin" else 1024
    assert (peaks[1] - peaks[0]) * unit < 60 << 20  # of 120 MB in the store
