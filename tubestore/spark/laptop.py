"""A session for a laptop: finds a Java, sets what makes Spark and Python hand data over quickly.

With another master than `local…` nothing is set that the user did not give: hosts, the Python of
the workers and all settings are those of the cluster and of `spark-defaults.conf`. What could be
better is printed once (`kit/settings.py`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tubestore.spark.kit import java
from tubestore.spark.kit.running import SparkFailed, reason
from tubestore.spark.kit.settings import BATCH_BYTES, SOCKETS
from tubestore.spark.source import TubeStoreSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What `session` sets on this machine, unless it is given other values.
SETTINGS: dict[str, str] = {
    SOCKETS: "true",
    BATCH_BYTES: "1m",
    # Two files a micro-batch instead of four: beside each file of a checkpoint another one with its
    # checksums, and for each a process that sets its permissions, took 30 ms a file.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one process of this machine.

    >>> is_local("local"), is_local("local[2,3]"), is_local("spark://host:7077")
    (True, True, False)
    """
    return master == "local" or master.startswith("local[")


def session(
    master: str = "local[*]",
    settings: Mapping[str, Any] | None = None,
    *,
    memory: str | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return a Spark session with the sources registered; NoJava without a Java.

    An existing session is returned; of the settings it gets those that were given. `memory`: of
    the driver's Java process, 2g on this machine. With `quiet` the output of Java and the
    workers is not shown, now and later: errors come as exceptions all the same. SparkFailed
    with the reason where Spark does not start.
    """
    from pyspark.sql import SparkSession

    wanted = dict(settings or {})
    if SparkSession.getActiveSession() is None:
        java.ensure()
        if is_local(master):
            wanted = _for_this_machine() | wanted
            memory = memory or "2g"
        if memory is not None:
            wanted["spark.driver.memory"] = memory
    builder = SparkSession.builder.master(master).appName("tubestore")
    for name, value in wanted.items():
        builder = builder.config(name, str(value))
    with unheard() if quiet else contextlib.nullcontext():
        try:
            spark: SparkSession = builder.getOrCreate()
        except Exception as error:
            raise SparkFailed(f"Spark does not start at {master}: {reason(error)}") from error
    if quiet:
        spark.sparkContext.setLogLevel("OFF")
    TubeStoreSource.register(spark)
    return spark


def _for_this_machine() -> dict[str, str]:
    """Return the settings of a laptop; sets its host and its Python in the environment."""
    os.environ.setdefault("PYSPARK_PYTHON", java.worker_python())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = dict(SETTINGS)
    # A socket's path has room for 107 bytes, and a user's temporary directory may be deep.
    if len(tempfile.gettempdir()) > 40:
        found["spark.python.unix.domain.socket.dir"] = "/tmp"
    return found


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let processes that are started meanwhile write their errors nowhere, unless it fails."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            file.seek(0)
            os.write(stderr_copy, file.read())
            raise
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
