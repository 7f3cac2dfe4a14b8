"""A session for a laptop: finds a Java, sets what makes Spark and Python hand data over quickly.

On a cluster the session is the platform's, and is taken as it is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tubestore.spark.kit import java
from tubestore.spark.kit.settings import BATCH_BYTES, SOCKETS
from tubestore.spark.source import TubeStoreSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What `session` sets, unless it is given other values.
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


def session(
    master: str = "local[*]",
    settings: Mapping[str, Any] | None = None,
    *,
    memory: str = "2g",
    quiet: bool = False,
) -> SparkSession:
    """Return a Spark session on this machine with the sources registered; NoJava without a Java.

    An existing session is returned with its settings. With `quiet` the output of Java and the
    workers is not shown, now and later: errors come as exceptions all the same.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None:
        java.ensure()
        os.environ.setdefault("PYSPARK_PYTHON", java.worker_python())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("tubestore")
    builder = builder.config("spark.driver.memory", memory)
    # A socket's path has room for 107 bytes, and a user's temporary directory may be deep.
    directory = tempfile.gettempdir()
    if len(directory) > 40:
        builder = builder.config("spark.python.unix.domain.socket.dir", "/tmp")
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, str(value))
    with unheard() if quiet else contextlib.nullcontext():
        spark: SparkSession = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("OFF")
    TubeStoreSource.register(spark)
    return spark


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
