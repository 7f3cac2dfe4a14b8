"""An audit in splits finds what the check in one process finds, in sound and in damaged stores."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.spark.jobs.audit import WORK_DIRECTORY, audit
from rocketcompat.spark.jobs.audit_tasks import AuditJob
from tests.spark.rocket_stores import CONFIG, dumped, write_rocket_store
from tests.support.golden import ROCKET_VERSIONS, rocket_scenarios, unpack

pytestmark = pytest.mark.usefixtures("small_waves")
GEOMETRY = {"maxHashSlotNum": 100, "maxIndexNum": 400}
COUNT = 1500
#: Golden stores with damage, torn ends, stale records, expired and missing files, other queues.
GOLDEN = [
    "rolled", "flip-body-middle", "bad-size-middle", "torn-half", "expired-most", "cq-deleted",
    "cq-index-deleted", "cq-ext", "stale-units", "batchcq",
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("auditing") / "store"
    write_rocket_store(root, COUNT)
    return root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def audited(root: Path, **given: Any) -> Any:
    given.setdefault("max_split_bytes", 30_000)
    return audit(None, str(root), **given)  # type: ignore[arg-type]


def comparable(findings: list[Any]) -> list[tuple[Any, ...]]:
    """Findings without the sentence about keys, which names another first record."""
    return sorted(
        (f["path"], f["position"], f["reason"], f["severity"],
         f["message"].split(",")[0] if f["reason"] == "item_missing" else f["message"])
        for f in findings
    )  # fmt: skip


def verify(root: Path, options: dict[str, Any] | None = None, **given: Any) -> list[Any]:
    """The audit and the check find the same, the shards beside the log aside; returns it."""
    found_here = [f for f in check(root, options) if not f["path"].startswith(str(root / "tube"))]
    expected = comparable(found_here)
    found = audited(root, options=options, **given)
    assert comparable(found.findings) == expected
    assert not list((root / ".tubestore" / WORK_DIRECTORY).glob("*"))
    return found.findings


def test_a_sound_store_has_no_findings(store: Path) -> None:
    assert verify(store) == []
    done = audited(store)
    assert done.records == COUNT
    assert done.bytes > 100_000
    assert [row["split"] for row in done.done.rows if "records" in row] == list(range(
        sum("records" in row for row in done.done.rows)))  # fmt: skip


def place_to_flip(store: Path, name: str, rng: random.Random) -> tuple[Path, int]:
    """Choose a byte that stands for something which stands elsewhere too, or under a checksum."""
    if name == "commitlog":  # of a body
        row = rng.choice(dumped(store))
        path = max(p for p in (store / name).iterdir() if int(p.name) <= row["physical_offset"])
        start = path.read_bytes().index(row["body"], row["physical_offset"] - int(path.name))
        return path, start + rng.randrange(len(row["body"]))
    path = rng.choice([p for p in sorted((store / name).rglob("*")) if p.is_file()])
    used = len(path.read_bytes().rstrip(b"\0"))
    if name == "consumequeue":
        return path, rng.randrange(used)
    item = 40 + 100 * 4 + 20 * rng.randrange(1, (used - 440) // 20)
    return path, item + rng.choice([*range(12), *range(16, 20)])  # but for its time


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_every_planted_bit_flip_is_found(store: Path, name: str) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(6):
        path, place = place_to_flip(store, name, rng)
        before = path.read_bytes()
        raw = bytearray(before)
        raw[place] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        assert verify(store, GEOMETRY), f"seed {seed}: {path}, byte {place}"
        path.write_bytes(before)
    assert verify(store) == []


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


def test_a_store_that_is_being_written_has_no_findings_of_its_own(store: Path) -> None:
    with rocketcompat.open(store, "w", CONFIG, background=False) as writer:
        for number in range(50):
            writer.put_message(Message("topic0", b"late", keys=[f"late-{number}"]))
        reasons = {(f["reason"], f["severity"]) for f in audited(store).findings}
    assert {severity for _, severity in reasons} <= {"warning"}
