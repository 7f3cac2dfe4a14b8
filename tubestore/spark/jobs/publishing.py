"""Jobs whose tasks stage files, and whose end is one publish: import, copies, conversions.

What is done of a job stands beside what it staged, in `<root>/.tubestore/staging/<job>/`: a job
that was killed and is run again with its id stages only what is missing there, from whatever
machine it is submitted. With the publish both are gone, and the id is taken for ever.

Next to read: `running.py`, `../loads.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tubestore.filenames import DATA_SUFFIX, INDEX_SUFFIX
from tubestore.job_files import StagedFile, staging_directory
from tubestore.spark.jobs.running import Done, Job, Journal, Row, Told, run, silent
from tubestore.spark.loads import Load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOURNAL = "done.jsonl"


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a job: `rows` messages; `replayed` if it had been published before.

    `done` has a row a split; none if nothing was left to do.
    """

    job_id: str
    rows: int
    replayed: bool
    done: Done


def stage_and_publish(
    spark: SparkSession, job: Job, splits: Sequence[Any], load: Load, job_id: str,
    told: Told = silent,
) -> Published:  # fmt: skip
    """Stage splits in tasks and publish what they staged, in the order of the splits."""
    if load.is_published(job_id):
        known = load.publish(job_id, [])
        return Published(job_id, known.rows, known.replayed, Done([], 0, 0.0))
    directory = staging_directory(os.path.abspath(load.options.path), job_id)
    journal = Journal(
        Path(directory, _JOURNAL), job, anew=True, holds=lambda row: _is_there(directory, row)
    )
    done = run(spark, job, splits, journal=journal, told=told)
    files = [StagedFile.from_json(file) for row in done.rows for file in row["files"]]
    result = load.publish(job_id, files)
    return Published(job_id, result.rows, result.replayed, done)


def _is_there(directory: str, row: Row) -> bool:
    """Whether the files that a row describes are whole."""
    for file in map(StagedFile.from_json, row["files"]):
        for suffix, size in ((DATA_SUFFIX, file.data_size), (INDEX_SUFFIX, file.index_size)):
            try:
                if os.path.getsize(os.path.join(directory, file.name + suffix)) != size:
                    return False
            except OSError:
                return False
    return True
