"""The path answers where the test of a module is: `tests/README.md` describes the rule."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tubestore", "rocketcompat")
#: Modules without a test of their own, each with the reason.
WITHOUT = {
    "tubestore/cli/demo/child.py": "the process that the demo kills; its test is the demo's",
    "rocketcompat/cli/demo/child.py": "the process that the demo kills; its test is the demo's",
    "rocketcompat/cli/demo/spark.py": "needs a session: tests/spark/sessions/test_rocket.py",
    "rocketcompat/dispatch/protocols.py": "protocols alone, without code",
    "rocketcompat/ha/frames.py": "a table of constants, held by tests/compat",
    "rocketcompat/old_paths.py": "a table, read by tests/tubestore/core/test_old_paths.py",
    "rocketcompat/spark/source.py": "one declaration: tests/spark/sessions/test_rocket.py",
    "rocketcompat/spark/stream.py": "one call: tests/spark/sessions/test_rocket.py",
}
#: Test files about a package, or about what several rooms promise together.
ABOUT_MORE = {
    "test_bad_arguments.py",
    "test_documented_errors.py",
    "test_object_jobs.py",
    "test_public_surface.py",
}


def mirrored(module: PurePath) -> PurePath:
    """Return where the test of a module is; what needs PySpark is below `tests/spark/`."""
    package, *rooms = module.parent.parts
    if rooms[:1] == ["spark"]:
        return PurePath("tests", "spark", package, *rooms[1:])
    return PurePath("tests", package, *rooms)


def files_about(module: PurePath) -> set[Path]:
    """Return the test files about a module: beside each other, or in a folder of its name."""
    folder, name = ROOT / mirrored(module), module.stem
    beside = [*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")]
    return {*beside, *(folder / name).glob(f"test_{name}.py"), *(folder / name).glob(
        f"test_{name}_*.py"
    )}  # fmt: skip


MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name not in {"__init__.py", "__main__.py"}
)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_has_a_test_at_its_mirrored_path(package: str) -> None:
    missing = {
        module.as_posix(): (mirrored(module) / f"test_{module.name}").as_posix()
        for module in MODULES
        if module.parts[0] == package and not files_about(module)
    }
    assert set(missing) == {name for name in WITHOUT if name.startswith(f"{package}/")}, missing


@pytest.mark.parametrize("folder", ["tubestore", "rocketcompat", "spark"])
def test_each_test_at_a_mirrored_path_has_its_module(folder: str) -> None:
    known = set().union(*map(files_about, MODULES))
    found = {
        path
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        if path.name not in ABOUT_MORE and path.parent != ROOT / "tests" / "spark" / "sessions"
    }
    lost = sorted(path.relative_to(ROOT).as_posix() for path in found - known)
    assert lost == [], "no module has this name"


def test_few_modules_are_without_a_test() -> None:
    assert len(WITHOUT) <= 20
