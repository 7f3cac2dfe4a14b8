"""Publishing into a log whose files other processes write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat.check.whole import check
from rocketcompat.staging import publish as publishing
from rocketcompat.staging.writer import StagedLogWriter
from tests.support.publishing import Tasks
from tests.support.rocket.publishing import CONFIG, batch, numbered


def files_of(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.glob("*/**/*") if p.is_file() and p.name.isdigit()}


@pytest.mark.parametrize("count", [5, 60])
def test_what_tasks_have_written_is_the_job_and_tasks_that_go_on_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)
    tasks = Tasks()
    pieces: list[Any] = []
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        store.put_message(rocketcompat.Message("orders", b"before"))
        for task in range(3):
            with StagedLogWriter(tmp_path, "j", str(task), config=CONFIG) as writer:
                writer.write(batch(numbered(f"t{task}", count)))
                pieces += writer.finish()
        result = store.publish("j", pieces, spread=tasks)
        assert result.rows == 3 * count
        assert len(tasks.calls) == -(-result.end // 4096) - result.start // 4096
        store.put_message(rocketcompat.Message("orders", b"after"))
        store.flush()
        before = files_of(tmp_path)
        tasks.go_on()
        assert files_of(tmp_path) == before
        assert (
            sum(store.max_offset_in_queue("orders", queue) for queue in range(3)) == 3 * count + 2
        )
    assert list(check(tmp_path, {"maxHashSlotNum": 16, "maxIndexNum": 40})) == []
