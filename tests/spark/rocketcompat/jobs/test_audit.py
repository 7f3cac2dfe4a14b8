"""An audit in splits finds what the check in one process finds, in sound and in damaged stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcompat.spark.jobs.audit_tasks import AuditJob
from tests.spark.rocket_audits import COUNT, audited, verify
from tests.spark.rocket_audits import store as store
from tests.spark.rocket_audits import template as template
from tests.support.golden import ROCKET_VERSIONS, rocket_scenarios, unpack

pytestmark = pytest.mark.usefixtures("small_waves")

#: Golden stores with damage, torn ends, stale records, expired and missing files, other queues.
GOLDEN = [
    "rolled", "flip-body-middle", "bad-size-middle", "torn-half", "expired-most", "cq-deleted",
    "cq-index-deleted", "cq-ext", "stale-units", "batchcq",
]  # fmt: skip


def test_a_sound_store_has_no_findings(store: Path) -> None:
    assert verify(store) == []
    done = audited(store)
    assert done.records == COUNT
    assert done.bytes > 100_000
    assert [row["split"] for row in done.done.rows if "records" in row] == list(range(
        sum("records" in row for row in done.done.rows)))  # fmt: skip


@pytest.mark.parametrize("scenario", GOLDEN)
def test_golden_stores_have_the_findings_of_the_check(scenario: str, tmp_path: Path) -> None:
    for version in ROCKET_VERSIONS:
        if scenario in rocket_scenarios(version):
            store = unpack("rocketmq", version, scenario, tmp_path / version).store
            verify(store, max_split_bytes=2000)


def test_an_audit_that_was_killed_does_what_is_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> Any:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(AuditJob, "work", killed)
        with pytest.raises(RuntimeError, match="killed"):
            audited(store, job_id="nightly")
    again = audited(store, job_id="nightly")
    assert (again.findings, again.records) == ([], COUNT)
    assert 0 < again.done.resumed < len(again.done.rows)
