"""What a task of the doctor sees; it is sent by value, and needs nothing but Python there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.stores import write_store
from tubestore.spark.jobs import doctor


def probe_of(root: Path) -> doctor.Probe:
    return replace(doctor._probe_of(str(root)), pause=0)


def test_a_probe_writes_into_the_store_and_what_it_left_can_be_removed(tmp_path: Path) -> None:
    write_store(tmp_path, {"t": 10})
    before = sorted(tmp_path.rglob("*"))
    probe = probe_of(tmp_path)
    found = probe.row("0")
    assert "problem" not in found
    assert found["directories"] == 2  # the topic's, and the state's
    doctor._clean(probe.staging)
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name != "staging"] == before


def test_a_directory_that_is_no_store_is_a_problem(tmp_path: Path) -> None:
    found = probe_of(tmp_path / "nothing").row("0")
    assert found["problem"].startswith("cannot read the store: ")


def test_a_probe_needs_no_package_of_ours_where_it_runs(tmp_path: Path) -> None:
    """It is sent by value: a process without this package takes it, and reports what is missing."""
    pytest.importorskip("pyspark")
    import pyspark
    from pyspark import cloudpickle

    write_store(tmp_path / "store", {"t": 10})
    cloudpickle.register_pickle_by_value(doctor.probe_module)
    try:
        sent = cloudpickle.dumps(probe_of(tmp_path / "store"))
    finally:
        cloudpickle.unregister_pickle_by_value(doctor.probe_module)
    (tmp_path / "sent").write_bytes(sent)
    code = f"""
import json, pickle, sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
sys.modules["pyarrow"] = sys.modules["numpy"] = sys.modules["tubestore"] = None
import importlib.util
place = {str(Path(pyspark.__file__).parent / "cloudpickle")!r}
spec = importlib.util.spec_from_file_location("pyspark.cloudpickle", place + "/__init__.py",
                                              submodule_search_locations=[place])
import types
sys.modules["pyspark"] = types.ModuleType("pyspark")
sys.modules["pyspark.cloudpickle"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(pickle.load(open({str(tmp_path / "sent")!r}, "rb")).row("7")))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    row = json.loads(ran.stdout)
    assert (row["tubestore"], row["numpy"]) == ("missing", "missing")
    assert "problem" not in row
