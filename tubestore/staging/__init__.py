"""Files made elsewhere, and the record that makes them part of a store; for shards and for a log.

Reading order: job_files, job_ids, commit_records, writer, placing, behind,
roll_forward, publisher, rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubestore.core.doors import lazily

if TYPE_CHECKING:
    from tubestore.staging.writer import StagedWriter as StagedWriter

__all__ = ["StagedWriter"]
__getattr__ = lazily(__name__, {"StagedWriter": "writer"})
