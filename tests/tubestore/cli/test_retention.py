"""`tubestore retention`: what would go, when and why; with --apply it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubestore
from tests.support.tube_cli import Cli, bodies_in
from tests.support.tube_cli import cli as cli
from tests.tubestore.cli.conftest import DAY


def test_retention_shows_what_would_go_and_apply_removes_it(cli: Cli, aged: Path) -> None:
    shown = cli("retention", aged, "--max-age", "4d", "-f", "jsonl")
    assert shown.code == 0
    assert "would go; --apply removes them" in shown.err
    assert {row["verdict"] for row in shown.rows} == {"goes"}
    assert {row["stream"] for row in shown.rows} == {"data", "index"}
    assert len(bodies_in(aged)) == 100
    applied = cli("retention", aged, "--max-age", "4d", "--apply", "-f", "jsonl")
    assert applied.rows == shown.rows
    assert f"{len(shown.rows)} files" in applied.err
    assert not any(Path(row["path"]).exists() for row in shown.rows)
    left = [int(body or b"-1") for body in bodies_in(aged)]
    assert 50 <= len(left) < 80
    assert left == list(range(100))[-len(left) :]


def test_retention_explains_every_file(cli: Cli, aged: Path) -> None:
    cli("change", aged, "t", "--max-age", "4d")
    rows = cli("retention", aged, "--explain", "-f", "jsonl").rows
    files = sorted(str(path) for path in [*aged.glob("t-0/*.tube"), *aged.glob("t-0/index/*")])
    assert sorted(row["path"] for row in rows) == files
    assert {row["reason"] for row in rows} >= {
        "its newest message is older than 4d",
        "its newest message is not older than 4d",
        "it is written to",
    }
    for row in rows:
        if row["last_time"] is not None:
            assert row["first_time"] <= row["last_time"] == row["due"] - 4 * DAY
    text = cli("retention", aged, "--explain").out.decode()
    assert text.splitlines()[0].split() == [
        "topic", "store_id", "stream", "start", "bytes", "last_time", "verdict", "due", "reason",
    ]  # fmt: skip
    assert "written to" in text
    csv = cli("retention", aged, "--explain", "-f", "csv").out.decode()
    assert csv.startswith("topic,store_id,stream,start,bytes,")
    assert len(csv.splitlines()) == len(rows) + 1


def test_paths_are_below_the_root_as_it_was_named(
    cli: Cli, aged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(aged.parent)
    for place in (aged.name, aged):
        rows = cli("retention", place, "--explain", "-f", "jsonl").rows
        assert {row["path"].startswith(f"{place}/t-0/") for row in rows} == {True}
        assert all(Path(row["path"]).exists() for row in rows)


def test_retention_by_size_counts_the_store_or_the_topic(cli: Cli, aged: Path) -> None:
    with tubestore.open(aged) as store:
        store.create_topic("young").append(b"x" * 5000)
    rows = cli("retention", aged, "--max-bytes", "12KB", "-f", "jsonl").rows
    assert {row["topic"] for row in rows} == {"t"}
    one = cli("retention", aged, "--topic", "t", "--max-bytes", "12KB", "-f", "jsonl").rows
    assert 0 < len(one) < len(rows)
    assert cli("retention", aged, "--topic", "no", "--max-bytes", "1").code == 1


def test_nothing_to_remove_is_reported_and_is_no_failure(cli: Cli, aged: Path) -> None:
    done = cli("retention", aged)
    assert (done.code, done.out, done.err) == (0, b"", "0 files with 0 B would go\n")
    done = cli("retention", aged, "--apply", "-f", "jsonl")
    assert (done.code, done.out, done.err) == (0, b"", "0 files with 0 B removed\n")


def test_grace_empties_the_trash(cli: Cli, aged: Path) -> None:
    done = cli("retention", aged, "--max-age", "1h", "--apply")
    assert "deletes them in 2m" in done.err
    trash = aged / "t-0" / ".tubestore" / "trash"
    assert len(list(trash.iterdir())) > 5
    done = cli("retention", aged, "--apply", "--grace", "0s")
    assert "of the trash deleted" in done.err
    assert list(trash.iterdir()) == []


@pytest.fixture
def scattered(tmp_path: Path) -> Path:
    """A topic in many small files."""
    with tubestore.open(tmp_path / "s", segment_size_bytes=300, index_segment_size_bytes=84) as s:
        topic = s.create_topic("t")
        for number in range(60):
            topic.append(b"%0100d" % number)
            topic.flush()
    return tmp_path / "s"


def data_files(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("t-0/*.tube"))


def test_compact_shows_which_files_would_become_one_and_apply_merges_them(
    cli: Cli, scattered: Path
) -> None:
    before = data_files(scattered)
    shown = cli("compact", scattered, "-f", "jsonl")
    assert data_files(scattered) == before
    assert "would become 2; --apply merges them" in shown.err
    assert [(row["stream"], row["files"]) for row in shown.rows] == [("data", 30), ("index", 20)]
    applied = cli("compact", scattered, "--apply", "-f", "jsonl")
    assert applied.rows == shown.rows
    assert applied.err.startswith("50 files with ")
    assert data_files(scattered) == [before[0], before[-1]]
    assert [int(body or b"-1") for body in bodies_in(scattered)] == list(range(60))
    assert "0 files" in cli("compact", scattered, "--apply").err


def test_compact_leaves_a_damaged_file_and_says_so(cli: Cli, scattered: Path) -> None:
    path = scattered / "t-0" / data_files(scattered)[5]
    bytes_ = bytearray(path.read_bytes())
    bytes_[70] ^= 1
    path.write_bytes(bytes_)
    applied = cli("compact", scattered, "--files-min", "4", "--apply")
    assert "damaged, and left as they are: 1 (see `tubestore check`)" in applied.err
    assert path.read_bytes() == bytes_
    assert len(data_files(scattered)) == 4


def test_compact_of_a_topic_or_store_that_is_not_there_is_one_sentence(
    cli: Cli, scattered: Path
) -> None:
    for arguments in ([scattered / "other"], [scattered, "--topic", "x", "--apply"]):
        missing = cli("compact", *arguments)
        assert missing.code in (1, 3)
        assert (missing.out, missing.err.count("\n")) == (b"", 1)
    assert cli("compact", scattered, "--files-min", "1").code == 2
