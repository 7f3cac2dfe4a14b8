"""Bad input of `tubestore publish`: one sentence with the place, and nothing is written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import tubestore
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root

NOT_UTF8 = pa.StringArray.from_buffers(
    2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
)
BODIES = pa.array([b"one", b"two"])


def parquet(**columns: Any) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        path = directory / "rows.parquet"
        pa.parquet.write_table(pa.table({"body": BODIES, **columns}), path)
        return path

    return write


def raw(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return write


def damaged(directory: Path) -> Path:
    path = parquet()(directory)
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"#" * (len(content) // 2 - len(content) // 3)
    path.write_bytes(content)
    return path


def line(text: str) -> Callable[[Path], Path]:
    return raw("rows.jsonl", b'{"text": "good", "partition": 0}\n' + text.encode() + b"\n")


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an empty Parquet file": (raw("rows.parquet", b""), "rows.parquet: "),
    "a file that is no Parquet": (raw("rows.parquet", b"PAR1 nonsense PAR1"), "rows.parquet: "),
    "a damaged Parquet file": (damaged, "rows.parquet: "),
    "no body": (lambda d: write_table(d, {"partition": [0]}), "the column body is missing"),
    "an unknown column": (parquet(colour=pa.array([1, 2])), "columns colour: unknown"),
    "a null body": (lambda d: write_table(d, {"body": [b"x", None]}), "row 1: a message needs a body"),  # noqa: E501
    "a number as body": (lambda d: write_table(d, {"body": [1, 2]}), "column body: int64 is neither"),  # noqa: E501
    "a fraction as partition": (parquet(partition=pa.array([0.5, float("nan")])), "column partition"),  # noqa: E501
    "no such partition": (parquet(partition=pa.array([0, 77])), "row 1: partition 77"),
    "a partition beyond int64": (parquet(partition=pa.array([0, 2**64 - 1], pa.uint64())), "partition"),  # noqa: E501
    "a key that is not UTF-8": (parquet(key=NOT_UTF8), "UTF8"),
    "a time without zone": (parquet(received_time=pa.array([0, 1], pa.timestamp("ms"))), "with a zone"),  # noqa: E501
    "no JSON": (line("{"), "rows.jsonl, line 2: "),
    "no object": (line("[1]"), "rows.jsonl, line 2: not a JSON object"),
    "deep JSON": (line("[" * 100_000), "rows.jsonl, line 2: nested too deeply"),
    "NaN": (line('{"text": "x", "partition": NaN}'), "line 2: partition nan is not a whole number"),
    "a large number": (line('{"text": "x", "received_time": 1' + "0" * 40 + "}"), "fit into 64 bits"),  # noqa: E501
    "a huge number": (line('{"text": "x", "partition": 1' + "0" * 5000 + "}"), "line 2: column 28: a number of 5001 digits"),  # noqa: E501
    "a huge number as text": (line('{"text": "x", "partition": "1' + "0" * 5000 + '"}'), "line 2: partition '1000"),  # noqa: E501
    "a CSV file with a huge number": (raw("rows.csv", b"body,partition\nx," + b"9" * 5000 + b"\n"), "99…99"),  # noqa: E501
    "a fraction": (line('{"text": "x", "partition": 0.5}'), "partition 0.5 is not a whole number"),
    "a number as text": (line('{"text": 5, "partition": 0}'), "line 2: text 5 is not text"),
    "null as text": (line('{"text": null, "partition": 0}'), "line 2: one of body"),
    "a number as attribute": (line('{"text": "x", "attributes": {"a": 1}}'), "attribute 'a' 1 is not"),  # noqa: E501
    "a list as attributes": (line('{"text": "x", "attributes": [1]}'), "attributes [1] is not"),
    "a half of a surrogate": (line('{"text": "x", "key": "\\ud800"}'), "line 2: key: no text"),
    "no base64": (line('{"body": "???"}'), "line 2: body is not base64"),
    "an unknown field": (line('{"text": "x", "colour": 1}'), "unknown field 'colour'"),
    "no UTF-8": (raw("rows.jsonl", b"\xff\xfe\n"), "line 1: no UTF-8"),
    "gzip": (lambda d: write_gzip(d), "line 1: gzip"),
    "a CSV file with a cell too many": (raw("rows.csv", b"body,partition\nx,0\ny,0,1\n"), "Expected 2 columns, got 3: y,0,1"),  # noqa: E501
    "a CSV file with text for a number": (raw("rows.csv", b"body,partition\nx,0\ny,z\n"), "value 'z'"),  # noqa: E501
    "a CSV file with another column": (raw("rows.csv", b"body,colour\nx,0\n"), "columns colour"),
    "a CSV file that is not UTF-8": (raw("rows.csv", b"body,key\nx,\xff\n"), "UTF8"),
    "an empty CSV file": (raw("rows.csv", b""), "rows.csv: "),
    "another kind of file": (raw("rows.txt", b"x"), "ends in one of .parquet"),
}  # fmt: skip


def write_table(directory: Path, columns: dict[str, Any]) -> Path:
    path = directory / "rows.parquet"
    pa.parquet.write_table(pa.table(columns), path)
    return path


def write_gzip(directory: Path) -> Path:
    path = directory / "rows.jsonl"
    path.write_bytes(gzip.compress(b'{"text": "x"}\n', mtime=0) + b"\n")
    return path


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_with_its_place_and_nothing_is_written(
    cli: Cli, root: Path, tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    path = make(tmp_path)
    before = rows_in(root)
    result = cli("publish", root, "job", path, "--topic", "t")
    assert result.code == 2, result
    assert result.err.count("\n") == 1
    assert len(result.err) < 1000
    assert str(path) in result.err
    assert words in result.err
    assert rows_in(root) == before
    assert cli("publish", root, "job", good(tmp_path), "--topic", "t").code == 0


def good(directory: Path) -> Path:
    path = directory / "good.jsonl"
    path.write_bytes(b'{"text": "one", "partition": 0}\n{"text": "two", "partition": 1}\n')
    return path


def rows_in(root: Path) -> int:
    with tubestore.open(root, "r") as store:
        return sum(batch.num_rows for batch in store["t"].scan())


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_the_same_rows_come_from_every_kind_of_file(
    cli: Cli, root: Path, tmp_path: Path, name: str
) -> None:
    if name == "rows.jsonl":
        text = b'{"text": "one", "partition": 2, "filter_item": "f"}\n'
        text += b'{"text": "None", "partition": 3}\n'
        path = raw(name, text)(tmp_path)
    elif name == "rows.csv":
        path = raw(name, b"body,partition,filter_item\none,2,f\nNone,3,\n")(tmp_path)
    else:
        path = write_table(
            tmp_path, {"body": ["one", "None"], "partition": [2, 3], "filter_item": ["f", None]}
        )
    with tubestore.open(root, "r") as store:
        before = {p: len(list(store["t"].messages(p))) for p in (2, 3)}
    assert cli("publish", root, "job", path, "--topic", "t").code == 0
    with tubestore.open(root, "r") as store:
        found = [list(store["t"].messages(p))[before[p] :] for p in (2, 3)]
    assert [[(m.body, m.filter_item) for m in rows] for rows in found] == [
        [(b"one", "f")],
        [(b"None", None)],
    ]


@pytest.mark.parametrize(
    "staged", [b"[" * 100_000, b"5\n", b"[]\n", b'{"name": null}\n', b"\xff\n"]
)
def test_a_list_of_staged_files_that_makes_no_sense_is_a_sentence(
    cli: Cli, root: Path, tmp_path: Path, staged: bytes
) -> None:
    path = raw("staged.jsonl", staged)(tmp_path)
    result = cli("publish", root, "job", "--staged", path)
    assert (result.code, result.err.count("\n")) == (2, 1), result
