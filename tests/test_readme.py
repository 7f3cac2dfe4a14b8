"""The README and the maps: what they name is there. `test_pages.py` runs their programs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import rocketcompat
import tubestore
from tests.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ROOMS = sorted(
    path.parent
    for package in ("tubestore", "rocketcompat")
    for path in (ROOT / package).glob("*/__init__.py")
    if path.parent.name not in {"cli", "spark", "testing"}
)


def test_the_readme_starts_with_one_sentence_and_the_two_commands() -> None:
    head = README[: README.index("```python")]
    assert head.startswith("# tubestore\n\n")
    assert "make demo" in head
    assert "make test" in head


def test_the_readme_is_short() -> None:
    """Its sections are short, and end with the page that has the rest."""
    assert len(README.splitlines()) < 300


@pytest.mark.parametrize("package", [tubestore, rocketcompat])
def test_the_reference_has_every_public_name_and_no_other(package: ModuleType) -> None:
    page = (ROOT / package.__name__ / "docs" / "api.md").read_text()
    form = rf"^\.\. auto(?:class|function|exception):: {package.__name__}\.(\w+)(?:\(\))?$"
    named = re.findall(form, page, re.MULTILINE)
    assert sorted(named) == sorted(package.__all__)
    for path in re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)", page, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def _documented(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Go through the docstrings that `help` shows of what the reference names."""
    page = (ROOT / package.__name__ / "docs" / "api.md").read_text()
    for path in re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.MULTILINE):
        module, _, name = path.rpartition(".")
        held = getattr(importlib.import_module(module), name)
        yield path, inspect.getdoc(held) or ""
        for inner, value in vars(held).items() if inspect.isclass(held) else ():
            if not inner.startswith("_"):
                yield f"{path}.{inner}", inspect.getdoc(value) or ""


@pytest.mark.parametrize("package", [tubestore, rocketcompat])
def test_help_stands_alone(package: ModuleType) -> None:
    """It names no module to go and read, no file of the code, and no section of a document."""
    found = [
        (path, name)
        for path, text in _documented(package)
        for names in re.findall(r"`([\w.]+)`|(\w+\.py\b)|(§)", text)
        for name in names
        if name and (name == "§" or name.endswith(".py") or _is_inside(name))
    ]
    assert found == []


@pytest.mark.parametrize(
    "options", [tubestore.StoreOptions, tubestore.TopicOptions, rocketcompat.MessageStoreConfig]
)
def test_help_explains_each_setting_once_and_no_other(options: type) -> None:
    """The docstring is what `help` and the reference show; a line may explain several settings."""
    entry = r"^- ((?:`\w+`,\s+)*`\w+`): (?:\S+\s+){2}\S"
    found = re.findall(entry, inspect.getdoc(options) or "", re.MULTILINE)
    named = [name for names in found for name in re.findall(r"\w+", names)]
    assert sorted(named) == sorted(field.name for field in fields(options))


def _is_inside(name: str) -> bool:
    """True for what is in a module of a room, `record.arrow.RECORD_SCHEMA`, without its package."""
    places = name.split(".")
    packages = (ROOT / "tubestore", ROOT / "rocketcompat")
    return any(
        package.joinpath(*places[:count]).with_suffix(".py").exists()
        for package in packages
        for count in range(2, len(places) + 1)
    )


def test_each_room_lists_its_files_in_reading_order() -> None:
    for room in ROOMS:
        listed = re.search(
            r"Reading order: (.*?)\.\n", (room / "__init__.py").read_text(), re.DOTALL
        )
        assert listed, f"{room.name}: no reading order"
        names = listed[1].replace("\n", " ").replace(" ", "").split(",")
        files = {path.stem for path in room.glob("*.py")} - {"__init__"}
        assert sorted(names) == sorted(files), room.name


def test_the_map_names_every_room() -> None:
    design = (ROOT / "tubestore" / "docs" / "map.md").read_text()
    for room in ROOMS:
        assert f"`{room.relative_to(ROOT)}/`" in design, f"{room.name} is not on the map"


def test_nothing_in_the_repository_names_the_machine_it_was_made_on() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    ).stdout.split(b"\0")
    words = re.compile(rb"/work/(main|shared)|/root/|pypi\.org|files\.pythonhosted")
    for name in filter(None, listed):
        path = ROOT / name.decode()
        if path.suffix not in {".xz", ".png"} and path != Path(__file__) and path.is_file():
            found = words.search(path.read_bytes())
            assert found is None, f"{path.name}: {found.group() if found else ''}"


def test_every_decision_that_the_code_names_is_on_the_page() -> None:
    page = (ROOT / "tubestore" / "docs" / "decisions.md").read_text()
    numbered = re.findall(r"^## (D\d+)\. ", page, re.MULTILINE)
    assert numbered == [f"D{number}" for number in range(1, len(numbered) + 1)]
    for folder in ("tubestore", "rocketcompat", "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for names in re.findall(r"decisions\.md ((?:D\d+(?:, )?)+)", path.read_text()):
                assert set(names.split(", ")) <= {*numbered}, path


@pytest.mark.parametrize("page", ["README.md", "tubestore/docs/map.md", "tests/README.md"])
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    for named in re.findall(r"`((?:tubestore|rocketcompat|tests|bench)/[\w/.]*)`", text):
        assert (ROOT / named).exists(), named


def test_every_page_that_the_code_names_is_in_the_repository() -> None:
    """A reader of a comment has the repository, and no notes beside it."""
    pages = {Path(page).name for page in PAGES}
    for folder in ("tubestore", "rocketcompat", "bench", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != ROOT / "tests/test_pages.py":  # it makes pages
                named = {*re.findall(r"[\w-]+\.md\b", path.read_text())}
                assert named <= pages, path


def test_the_engine_has_at_most_eight_files_beside_its_rooms() -> None:
    assert len(list((ROOT / "tubestore").glob("*.py"))) <= 8


def test_no_folder_has_more_than_sixteen_python_files() -> None:
    counts = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("tubestore", "rocketcompat", "bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert {folder: count for folder, count in counts.items() if count > 16} == {}
