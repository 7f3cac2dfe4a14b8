"""`tubestore.offline.check` finds every damage in the golden stores, and none elsewhere."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tubestore
from tests.support.golden import GoldenFactory
from tests.support.tube import tree_digest
from tests.tubestore.offline.test_dump import CLEAN
from tubestore.cli.inspect import has_writer
from tubestore.core.vfs import OsVfs
from tubestore.offline import check as checking
from tubestore.offline.check import Finding, Reason, check

#: What is found in each damaged shard: reasons, and the place of the first (file, byte).
TORN = {
    "bothtorn": {"partial_entry", "unindexed", "torn"},
    "datacut7": {"missing", "torn"},
    "datacuthead": {"missing", "torn"},
    "datagone": {"missing"},
    "datajunk": {"torn"},
    "datashort": {"missing"},
    "datazeros": {"torn"},
    "digitsname": {"name_form"},
    "entryhuge": {"bad_entry"},
    "entrypartition": {"entry_differs"},
    "entrypos": {"bad_entry"},
    "entrysize": {"bad_entry"},
    "entrysmall": {"bad_entry"},
    "entryzero": {"bad_entry"},
    "headerother": {"entry_differs"},
    "index13": {"partial_entry", "unindexed"},
    "indexbeyond": {"missing"},
    "indexcut5": {"partial_entry", "unindexed"},
    "indexdirgone": {"unindexed"},
    "indexgone": {"unindexed"},
    "indexnegative": {"bad_entry"},
    "indexshort": {"unindexed"},
    "indexzeros": {"bad_entry"},
    "innercut": {"gap", "partial_entry", "unindexed"},
    "innergone": {"missing"},
    "innerindexgone": {"gap", "unindexed"},
    "innerindexzero": {"bad_entry"},
    "innerzero": {"bad_record"},
    "lastdatagone": {"missing"},
    "lengthbad": {"bad_record"},
    "lengthsmall": {"bad_record"},
    "overlap": {"overlap"},
    "payloadbit": {"bad_checksum"},
    "shortname": {"name_form"},
    "strayindex": {"foreign_name"},
    "straytube": {"foreign_name"},
    "tokenbad": {"bad_record"},
    # Without its oldest file a shard looks as it does after retention; sidecars are allowed.
    "firstdatagone": set(),
    "firstindexgone": set(),
    "sidecars": set(),
}

CRASH = {
    "crashatroll": set(),
    "crashcaches": set(),
    "crashfirst": set(),
    "crashdataonly": {"unindexed"},
    "crashhalfdata": {"unindexed", "torn"},
    "crashindexonly": {"missing"},
    "crashpoison": {"unreferenced", "bad_entry"},
}

OLD = {
    "oldboth": set(),
    "oldindex": set(),
    "olddata": set(),
    "young": set(),
    "oldrolled": set(),
    "oldtornindex": {"partial_entry", "unindexed"},
    "oldtorndata": {"missing", "torn"},
}


def reasons_by_shard(findings: list[Finding], root: Path, known: Iterator[str]) -> dict[str, set]:  # type: ignore[type-arg]
    found: dict[str, set[str]] = {name: set() for name in known}
    for finding in findings:
        shard = Path(finding.path).relative_to(root).parts[0]
        found[shard.rpartition("-")[0]].add(str(finding.reason))
    return found


@pytest.mark.parametrize(
    ("scenario", "wanted"), [("torn", TORN), ("crash", CRASH), ("timeroll", OLD)]
)
def test_every_damage_is_found_for_its_reason_and_nothing_else(
    golden: GoldenFactory, scenario: str, wanted: dict[str, set[str]]
) -> None:
    root = golden("tubemq", "1.2.0", scenario).store
    before = tree_digest(root)
    assert reasons_by_shard(list(check(root)), root, iter(wanted)) == wanted
    assert tree_digest(root) == before


@pytest.mark.parametrize("scenario", [s for s in CLEAN if s != "attributes"])
def test_nothing_is_found_where_nothing_is_damaged(golden: GoldenFactory, scenario: str) -> None:
    assert list(check(golden("tubemq", "1.2.0", scenario).store)) == []


def test_attributes_that_were_sent_broken_are_warnings(golden: GoldenFactory) -> None:
    findings = list(check(golden("tubemq", "1.2.0", "attributes").store))
    assert {(f.reason, f.severity) for f in findings} == {(Reason.BAD_ATTRIBUTES, "warning")}


def test_a_state_file_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("t")
    own = tmp_path / ".tubestore"
    assert list(check(tmp_path)) == []
    (own / "topics.json").write_text("{")
    state = json.loads((own / "store.json").read_text())
    (own / "store.json").write_text(json.dumps({**state, "version": 99}))
    assert [Path(f.path).name for f in check(tmp_path)] == ["store.json", "topics.json"]


def test_a_store_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with tubestore.open(tmp_path, segment_size_bytes=40_000) as store:
            topic = store.create_topic("t", partitions=3, exist_ok=True)
            while not stop.is_set():
                topic.append_batch([{"body": b"x" * 200} for _ in range(20)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            if (tmp_path / "t-0").exists():
                assert list(check(tmp_path)) == []
    finally:
        stop.set()
        writer.join()
    assert list(check(tmp_path)) == []


class SlowWriter:
    """Appends to a shard's files piece by piece, as somebody who looks can see it."""

    def __init__(self, tmp_path: Path, step: int) -> None:
        source = tmp_path / "source"
        with tubestore.open(source, background=False) as store:
            store.create_topic("t").append_batch([{"body": b"%d" % n * 9} for n in range(9)])
        self.root = tmp_path / "copy"
        (self.root / "t-0" / "index").mkdir(parents=True)
        self.files = []
        for name in ("00000000000000000000.tube", "index/00000000000000000000.index"):
            whole = (source / "t-0" / name).read_bytes()
            target = self.root / "t-0" / name
            target.write_bytes(whole[: len(whole) * 2 // 5])
            self.files.append((target, whole, len(whole) * 2 // 5))
        self.step = step

    def wait(self, _: float) -> None:
        for place, (target, whole, size) in enumerate(self.files):
            if size < len(whole):
                with target.open("ab") as file:
                    file.write(whole[size : size + self.step])
                self.files[place] = (target, whole, size + self.step)
                return


def test_bytes_in_flight_are_distinguished_from_torn_ones_by_reading_again(tmp_path: Path) -> None:
    writer = SlowWriter(tmp_path, step=170)
    assert list(check(writer.root, wait=writer.wait)) == []


def test_the_same_bytes_are_torn_without_a_writer(tmp_path: Path) -> None:
    writer = SlowWriter(tmp_path, step=0)
    reasons = {f.reason for f in check(writer.root, wait=lambda _: None)}
    assert Reason.PARTIAL_ENTRY in reasons or Reason.TORN in reasons
    assert list(check(writer.root, wait=lambda _: None, is_written=lambda: True)) == []


def much_damaged(root: Path) -> list[Finding]:
    """Damage every second of a shard's 200 records; return what check finds."""
    with tubestore.open(root, background=False) as store:
        topic = store.create_topic("t")
        for number in range(200):
            topic.append(b"body %d" % number)
    (data,) = (root / "t-0").glob("*.tube")
    raw = bytearray(data.read_bytes())
    for number in range(0, 200, 2):
        raw[raw.index(b"body %d" % number)] ^= 1
    data.write_bytes(raw)
    return list(check(root))


def test_findings_of_a_store_that_lies_still_are_yielded_whenever_some_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = much_damaged(tmp_path)
    assert len(whole) >= 100
    monkeypatch.setattr(checking, "HELD_FINDINGS_MAX", 7)
    held = []
    hold = checking._Seen._hold

    def counted(self: checking._Seen, finding: Finding) -> None:
        hold(self, finding)
        held.append(len(self.findings))

    monkeypatch.setattr(checking._Seen, "_hold", counted)
    assert list(check(tmp_path)) == whole
    assert max(held) == 7


def test_of_findings_in_a_shard_that_moves_some_are_listed_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = much_damaged(tmp_path)
    monkeypatch.setattr(checking, "HELD_FINDINGS_MAX", 7)
    monkeypatch.setattr(checking._Seen, "has_moved", lambda self: True)
    looks = []
    found = list(check(tmp_path, wait=looks.append))
    assert looks
    assert found[:7] == whole[:7]
    (more,) = found[7:]
    assert more.reason is Reason.BAD_CHECKSUM
    assert (more.path, more.message) == (
        str(tmp_path / "t-0"), f"{len(whole) - 7} more of these in the shard",
    )  # fmt: skip


def test_damage_that_is_mended_meanwhile_is_neither_listed_nor_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    much_damaged(tmp_path)
    monkeypatch.setattr(checking, "HELD_FINDINGS_MAX", 7)
    (data,) = (tmp_path / "t-0").glob("*.tube")
    raw = bytearray(data.read_bytes())
    data.write_bytes(raw[:-5])  # torn: a writer may be at work

    def mend(_: float) -> None:
        for number in range(0, 200, 2):
            at = raw.find(bytes([ord("b") ^ 1]) + b"ody %d" % number)
            if at >= 0:
                raw[at] ^= 1
        data.write_bytes(raw)
        os.utime(data, (1, 1))

    monkeypatch.setattr(checking._Seen, "_certain", lambda self: iter(()))
    assert list(check(tmp_path, wait=mend)) == []


def test_a_file_that_cannot_be_read_is_a_finding_and_not_the_end(
    golden: GoldenFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden("tubemq", "1.2.0", "multistore").store
    vfs = OsVfs()
    opened = vfs.open

    def refuse(path: str, **options: bool) -> object:
        if "logs-1/0000" in path:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, **options)

    monkeypatch.setattr(vfs, "open", refuse)
    (finding,) = check(root, vfs=vfs)
    assert finding.reason is Reason.UNREADABLE
    assert "logs-1" in finding.path


def test_an_open_writer_is_seen_without_touching_its_lock(tmp_path: Path) -> None:
    with tubestore.open(tmp_path):
        if not Path("/proc/locks").exists():
            pytest.skip("this system does not list its locks")
        assert has_writer(str(tmp_path))
    assert not has_writer(str(tmp_path))
