"""Options of writing: their defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubestore
from tubestore.errors import InvalidOption
from tubestore.spark.kit.write_options import WRITE_TABLE, WriteOptions


@pytest.mark.parametrize(
    ("stream", "given", "says"),
    [
        (False, {"txnAppId": "q"}, "option txnAppId: only a stream has it"),
        (True, {"jobId": "j"}, "option jobId: a stream has txnAppId"),
        (True, {"txnAppId": "q:7"}, "it must not end in a colon and a number"),
        (False, {"jobId": "x" * 300}, "at most 200 characters"),
        (False, {"jobId": ""}, "a job needs an id"),
        (True, {"txnAppId": ""}, "a job needs an id"),
        (False, {"topic": "a/b"}, "option topic: 'a/b': only A-Z"),
        (False, {"numPartitions": "20000"}, "1 to 10000 a store"),
        (False, {"subscribe": "a"}, "option subscribe: not known"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    stream: bool, given: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        WriteOptions.parse({"path": "/s", **given}, stream=stream)
    assert says in str(caught.value)


def test_a_streams_checkpoint_is_not_an_option_here() -> None:
    of_the_query = {"checkpointLocation": "/c", "queryName": "q"}
    assert WriteOptions.parse({"path": "/s", **of_the_query}, stream=True).path == "/s"


def test_the_defaults_are_those_of_the_store() -> None:
    options = WriteOptions.parse({"path": "/s"})
    assert options.store == tubestore.StoreOptions()
    assert len({o.name for o in WRITE_TABLE}) == len(WRITE_TABLE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("store", "is in the store"),
        ("store/aside", "is in the store"),
        ("x/../store/aside", "is in the store"),
        ("link", "is in the store"),
        ("link/deep/aside", "is in the store"),
        ("file", "file is not a directory"),
        ("file/below/aside", "file is not a directory"),
        ("dangling", "dangling is not a directory"),
    ],
)
def test_a_directory_for_rejected_rows_that_is_none_or_in_the_store_is_refused(
    tmp_path: Path, given: str, says: str
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "file").write_text("a file")
    options = {"path": str(tmp_path / "store"), "rejectedRowsPath": str(tmp_path / given)}
    with pytest.raises(InvalidOption, match=f"option rejectedRowsPath: .*{says}"):
        WriteOptions.parse(options)
    for other in ("aside", "aside/deep", "."):
        options["rejectedRowsPath"] = str(tmp_path / other)
        assert WriteOptions.parse(options).rejected_path == str((tmp_path / other).resolve())


def test_a_store_behind_a_link_has_no_rejected_rows_in_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    aside = str(tmp_path / "store" / "aside")
    with pytest.raises(InvalidOption, match="is in the store"):
        WriteOptions.parse({"path": str(tmp_path / "link"), "rejectedRowsPath": aside})
