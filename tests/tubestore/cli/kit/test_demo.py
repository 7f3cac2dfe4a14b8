"""What both demos share: the files they take, the directory they may empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tubestore.cli.kit.demo import load_lines, prepare


def test_the_demo_takes_files_and_folders_of_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("import a\n\ndef f\nplain\n")
    (tmp_path / "b.txt").write_text("class B\n")
    table, files = load_lines([folder, tmp_path / "b.txt"], 100)
    assert files == 2
    assert table["body"].to_pylist() == [b"import a", b"def f", b"plain", b"class B"]
    assert table["filter_item"].to_pylist() == ["import", "def", None, "class"]


def test_the_demo_does_not_empty_a_directory_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        prepare(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
