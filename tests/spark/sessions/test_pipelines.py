"""A Declarative Pipelines project, as the page shows it, copies a store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster import JAVA_OPTIONS, REPOSITORY
from tests.spark.sessions.test_pages import PAGE
from tests.spark.stores import scanned_rows, write_store
from tubestore.offline.check import check
from tubestore.spark.kit import java

pytestmark = pytest.mark.slow
SPEC = """
name: copy
storage: file://{home}/storage
libraries:
  - glob:
      include: definitions/**
"""
#: Seconds; a quiet machine needs forty.
TIMEOUT = 480


@pytest.mark.usefixtures("needs_spark")
def test_the_pipeline_on_the_page_copies_a_store(tmp_path: Path) -> None:
    import pyspark

    pytest.importorskip("grpc", reason="Spark Connect's packages come with spark-local")
    write_store(tmp_path / "logs", {"logs": 300})
    programs = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (program,) = [found for found in programs if "pyspark import pipelines" in found]
    (tmp_path / "definitions").mkdir()
    definitions = program.replace("/data/", f"{tmp_path}/")
    (tmp_path / "definitions" / "copy.py").write_text(definitions)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(home=tmp_path))
    done = subprocess.run(
        [
            Path(pyspark.__file__).parent / "bin" / "spark-pipelines",
            "run", "--spec", tmp_path / "spark-pipeline.yml",
            "--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}",
        ],
        env={
            **os.environ,
            "JAVA_HOME": java.ensure(dict(os.environ)),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    # (PySpark 4.3.0 ends with an error of its own: it does not know what its server said last.)
    assert "Run is COMPLETED." in done.stdout + done.stderr, done.stdout + done.stderr[-3000:]
    assert scanned_rows(tmp_path / "copy") == scanned_rows(tmp_path / "logs")
    assert list(check(tmp_path / "copy")) == []
