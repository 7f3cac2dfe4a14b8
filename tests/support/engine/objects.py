"""Stores in an object storage: one that is a directory of this machine, and an S3 server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from tubestore.disks import object_files, roots

BUCKET = "bucket"


class Requests:
    """What was asked of an object storage: how often, and how many bytes it gave."""

    def __init__(self) -> None:
        self.listings = 0
        self.bytes = 0


class _Counted(SubTreeFileSystem):
    """Counts the listings of directories."""

    requests: Requests

    def get_file_info(self, asked: Any) -> Any:
        self.requests.listings += isinstance(asked, FileSelector)
        return super().get_file_info(asked)


def uri_of(root: Path, storage: Path) -> str:
    """Name a directory below `storage` as an object storage does."""
    return f"s3://{BUCKET}/{root.relative_to(storage)}?region=test"


@contextmanager
def directory_as_objects(storage: Path) -> Iterator[Requests]:
    """Let URIs of `uri_of` lead to directories, and count what is asked."""
    requests = Requests()
    read = object_files.ObjectFile.pread

    def file_system(root: str) -> tuple[Any, str]:
        made = _Counted(str(storage), LocalFileSystem())
        made.requests = requests
        return made, urlsplit(root).path.lstrip("/")

    def pread(self: object_files.ObjectFile, size: int, position: int) -> bytes:
        found = read(self, size, position)
        requests.bytes += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_files, "_file_system", file_system)
        patch.setattr(object_files.ObjectFile, "pread", pread)
        roots._objects.cache_clear()
        yield requests
    roots._objects.cache_clear()


class S3:
    """An S3 server on this machine; its objects can be read without credentials."""

    def __init__(self, host: str, port: int) -> None:
        self.query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        self._files = S3FileSystem(
            endpoint_override=f"{host}:{port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            allow_delayed_open=True,  # a small file is one request and not three
            default_metadata={"ACL": "public-read"},
        )
        self._files.create_dir(BUCKET)
        # The servers of one process share their objects: those of another module are still there.
        self._files.delete_dir_contents(BUCKET)

    def copy(self, root: Path, name: str) -> str:
        """Copy a directory's files, as `aws s3 cp --recursive` does; returns the copy's URI."""
        local = LocalFileSystem()
        for info in local.get_file_info(FileSelector(str(root), recursive=True)):
            if info.type == FileType.File:
                below = Path(info.path).relative_to(root)
                with self._files.open_output_stream(f"{BUCKET}/{name}/{below}") as out:
                    out.write(Path(info.path).read_bytes())
        return f"s3://{BUCKET}/{name}?{self.query}"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """Start a server for the tests of a module; skipped where moto is not installed."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: make test does it")
    started = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    started.start()
    log = logging.getLogger("werkzeug")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "level", logging.ERROR)  # it has a line for each request
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        try:
            yield S3(*started.get_host_and_port())
        finally:
            started.stop()
