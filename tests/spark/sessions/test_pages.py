"""The page about Spark: its table is the code's, its code runs, its map names every module."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import tubestore.spark
from rocketcompat.spark import write_options as rocket_options
from tests.pages import blocks
from tubestore.spark.kit.options import TABLE, markdown
from tubestore.spark.kit.write_options import WRITE_TABLE

PAGE = Path(tubestore.spark.__file__).with_name("README.md")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
_TABLE = re.compile(r"\| option \| default \| meaning \|\n(?:\|.*\n)+")


def test_the_table_of_options_is_that_of_the_code() -> None:
    """To write it anew: TUBESTORE_WRITE_PAGES=1."""
    text = PAGE.read_text()
    tables = [markdown(t) for t in (WRITE_TABLE, TABLE, rocket_options.WRITE_TABLE)]
    if os.environ.get("TUBESTORE_WRITE_PAGES"):
        left = iter(tables)
        text = _TABLE.sub(lambda _: next(left) + "\n", text)
        PAGE.write_text(text)
    assert _TABLE.findall(text) == [table + "\n" for table in tables]


def test_the_map_names_every_module() -> None:
    text = PAGE.read_text()
    for path in PAGE.parent.glob("*.py"):
        if not path.stem.startswith("__"):
            assert f"`{path.stem}`" in text, f"{path.name} is not on the map"


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_every_python_block_runs(
    spark: Any, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[block], f"README.md block {block}", "exec"), {})
    assert capsys.readouterr().out


def test_the_program_of_the_readme_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tubestore.open("data") as store:
        store.create_topic("logs").append(b"hello")
    (program,) = [block for block in blocks("README.md") if block.language == "py"]
    found: dict[str, Any] = {}
    exec(compile(program.text, "README.md", "exec"), found)
    assert found["df"].count() == 1


def test_no_module_hides_a_function_of_the_package() -> None:
    modules = {path.stem for path in PAGE.parent.glob("*.py")}
    assert not modules & set(tubestore.spark.__all__)
