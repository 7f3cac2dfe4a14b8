"""A root by its text: read wherever it is, written on this machine only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
import tubestore
from tests.support.engine.objects import Requests, directory_as_objects, uri_of
from tubestore.core.vfs import OsVfs
from tubestore.disks.object_files import READ_ONLY, ObjectVfs
from tubestore.disks.roots import absolute_root, disk_of, is_object_root, local_root
from tubestore.errors import ReadOnlyStore
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.staging.writer import StagedWriter


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Requests]:
    with directory_as_objects(tmp_path) as requests:
        yield requests


@pytest.mark.parametrize("root", ["/data", "data", "s3a://bucket/s", "dbfs:/mnt/s", "file:///s"])
def test_what_pyarrow_does_not_read_is_a_path(root: str) -> None:
    assert not is_object_root(root)
    assert isinstance(disk_of(root), OsVfs)


@pytest.mark.parametrize("scheme", ["s3", "gs", "gcs", "abfs", "abfss"])
def test_a_uri_stays_as_it_is(scheme: str) -> None:
    root = f"{scheme}://bucket/store/?region=r"
    assert is_object_root(root)
    assert absolute_root(root) == root
    with pytest.raises(ReadOnlyStore, match=READ_ONLY):
        local_root(root)


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_root("store") == local_root("store") == str(tmp_path / "store")


def test_one_connection_serves_a_root(objects: Requests) -> None:
    found = disk_of("s3://bucket/store")
    assert isinstance(found, ObjectVfs)
    assert disk_of("s3://bucket/store") is found


@pytest.mark.parametrize(
    "write",
    [
        tubestore.open,
        lambda root: rocketcompat.open(root, "w"),
        lambda root: StagedWriter(root, "job", "attempt"),
        lambda root: list(repair(root)),
    ],
    ids=["tubestore", "rocketcompat", "staging", "repair"],
)
def test_what_writes_a_store_refuses_a_uri(
    write: Callable[[str], Any], objects: Requests, tmp_path: Path
) -> None:
    with pytest.raises(ReadOnlyStore, match=READ_ONLY):
        write("s3://bucket/store")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_lacks_what_the_checkpoint_has_is_reported(
    objects: Requests, tmp_path: Path
) -> None:
    """Files of different moments: the copy was made while a writer was at work."""
    with tubestore.open(tmp_path / "store") as store:
        topic = store.create_topic("logs")
        topic.append_batch({"body": [b"x" * 100] * 50}, durability="fsync")
    (data,) = (tmp_path / "store" / "logs-0").glob("*.tube")
    data.write_bytes(data.read_bytes()[:1000])
    uri = uri_of(tmp_path / "store", tmp_path)
    with tubestore.open(uri, mode="r") as copy:
        assert [row["body"] for b in copy["logs"].scan() for row in b.to_pylist()]
        assert any("are recorded" in str(problem) for problem in copy.problems), copy.problems
    assert list(check(uri, wait=lambda _: None))


def test_a_copy_of_a_store_is_read_as_the_store(objects: Requests, tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "store") as store:
        store.create_topic("logs", partitions=2).append_batch({"body": [b"a", b"b", b"c"]})
    with tubestore.open(uri_of(tmp_path / "store", tmp_path), mode="r") as copy:
        assert copy.topics() == ["logs"]
        assert sorted(
            row["body"] for batch in copy["logs"].scan() for row in batch.to_pylist()
        ) == [b"a", b"b", b"c"]
        assert copy.problems == []
