"""The golden archives give back what was packed.

Every other golden test builds on this, so it trusts nothing of the reader: sizes, digests, times
and directories are taken from the files on disk and compared with the lists that came with the
stores.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from tests.support.golden import (
    ARCHIVES,
    ROCKET_VERSIONS,
    TUBE_VERSION,
    Golden,
    GoldenFactory,
    Row,
    answers,
    golden_fixture,  # noqa: F401  (pytest finds the fixture here)
    rocket_scenarios,
    tube_scenarios,
    unpack,
)

SIZE_HASHED_BYTES_MAX = 16 * 1024 * 1024
"""Larger files are nearly all hole: their data is hashed alone, since whole they take seconds."""

ALLOCATION_SLACK_BYTES = 1024 * 1024
"""What a file system may allocate beyond the data of a sparse file."""

SCENARIO_COUNTS = {("tubemq", "1.2.0"): 15, ("rocketmq", "4.9.8"): 82, ("rocketmq", "5.3.3"): 85}

ROCKET = [(version, name) for version in ROCKET_VERSIONS for name in rocket_scenarios(version)]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree(root: Path) -> dict[str, Path]:
    """Return the files and the empty directories (named with a final slash) below a directory."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_file():
            found[name] = path
        elif not any(path.iterdir()):
            found[f"{name}/"] = path
    return found


def read_extents(path: Path, extents: list[list[int]]) -> bytes:
    pieces = []
    with path.open("rb") as file:
        for start, length in extents:
            file.seek(start)
            pieces.append(file.read(length))
    return b"".join(pieces)


def check_file(path: Path, row: Row) -> None:
    """Compare a file on disk with its manifest row."""
    status = path.stat()
    assert status.st_size == row["size"], path
    if "extents" in row:
        data = read_extents(path, row["extents"])
        assert sha256(data) == row["dataSha256"], path
        assert status.st_blocks * 512 <= len(data) + ALLOCATION_SLACK_BYTES, path
    if status.st_size <= SIZE_HASHED_BYTES_MAX:
        assert sha256(path.read_bytes()) == row["sha256"], path


def check_manifest(golden: Golden) -> None:
    """Compare everything on disk with the manifest that the packer made from the source."""
    listed = {row["path"]: row for row in golden.manifest if "/" in row["path"]}
    found = tree(golden.root)
    assert found.keys() == listed.keys()
    for name, path in found.items():
        if not listed[name].get("dir"):
            check_file(path, listed[name])


def check_listing(golden: Golden, root: Path, rows: str) -> None:
    """Compare a RocketMQ tree with the list that was made where the store was written."""
    listed = {row["path"]: row for row in golden.rows(rows)}
    assert tree(root).keys() == listed.keys()
    for name, row in listed.items():
        path = root / name
        if row.get("dir"):
            continue
        assert path.stat().st_size == row["size"], path
        assert path.stat().st_mtime_ns == row["mtimeMs"] * 10**6, path
        if "sha256" in row and row["size"] <= SIZE_HASHED_BYTES_MAX:
            assert sha256(path.read_bytes()) == row["sha256"], path


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("version", "name"), ROCKET)
def test_rocketmq_store_is_the_one_that_was_listed(version: str, name: str, tmp_path: Path) -> None:
    golden = unpack("rocketmq", version, name, tmp_path)
    assert golden.meta["scenario"] == name
    check_manifest(golden)
    check_listing(golden, golden.store, "files")
    if golden.has("files-slave"):
        check_listing(golden, golden.slave, "files-slave")


@pytest.mark.parametrize("name", tube_scenarios())
def test_tubemq_store_is_the_one_that_was_packed(name: str, tmp_path: Path) -> None:
    golden = unpack("tubemq", TUBE_VERSION, name, tmp_path)
    assert golden.meta["scenario"] == name
    check_manifest(golden)
    for row in golden.expected(kind="store"):
        for files, directory in (("data", "."), ("index", "index")):
            sizes = {file["name"]: file["size"] for file in row["filesBefore"][files]}
            place = golden.store / row["store"] / directory
            assert {n: (place / n).stat().st_size for n in sizes} == sizes


@pytest.mark.parametrize("name", tube_scenarios())
def test_tubemq_files_have_the_age_they_need(name: str, tmp_path: Path) -> None:
    golden = unpack("tubemq", TUBE_VERSION, name, tmp_path)
    ages_hours = golden.meta.get("ageHours", {})
    for path in (path for path in golden.store.rglob("*") if path.is_file()):
        age_hours = ages_hours.get(path.relative_to(golden.store).as_posix(), 0)
        age_seconds = time.time() - path.stat().st_mtime
        assert -1 <= age_seconds - age_hours * 3600 < 60, path


@pytest.mark.parametrize(("system", "version"), SCENARIO_COUNTS)
def test_every_packed_row_can_be_read(system: str, version: str) -> None:
    names = tube_scenarios() if system == "tubemq" else rocket_scenarios(version)
    assert len(names) == SCENARIO_COUNTS[system, version]
    for name in names:
        scenario = answers(system, version, name)
        for row in scenario.manifest:
            if row["path"].endswith(".jsonl") and "/" not in row["path"]:
                assert row["size"] == 0 or any(scenario.rows(row["path"].removesuffix(".jsonl")))


def test_a_copy_is_fresh_and_writable(golden: GoldenFactory) -> None:
    first = golden("rocketmq", "5.3.3", "basic")
    file = first.store / "commitlog" / "00000000000000000000"
    content = file.read_bytes()
    with file.open("r+b") as changed:
        changed.write(b"changed")
    second = golden("rocketmq", "5.3.3", "basic")
    assert second.store != first.store
    assert (second.store / "commitlog" / file.name).read_bytes() == content


def test_rows_can_be_chosen_by_their_fields() -> None:
    basic = answers("tubemq", TUBE_VERSION, "basic")
    stores = list(basic.expected(kind="store"))
    assert [row["store"] for row in stores] == ["syslog-0"]
    assert sum(1 for _ in basic.expected(kind="message", store="syslog-0")) == stores[0]["entries"]
    assert not list(basic.expected(noSuchField=None))


def test_a_wrong_name_reports_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="multistore"):
        unpack("tubemq", TUBE_VERSION, "no-such", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"basic/puts\.jsonl"):
        list(answers("tubemq", TUBE_VERSION, "basic").puts())


def test_readme_lists_the_archives_as_they_are() -> None:
    readme = (ARCHIVES / "README.md").read_text(encoding="utf-8")
    archives = sorted(ARCHIVES.glob("*.tar.xz"))
    assert len(archives) == len(SCENARIO_COUNTS)
    for archive in archives:
        content = archive.read_bytes()
        assert f"| {len(content)} | `{sha256(content)}` |" in readme, archive.name
