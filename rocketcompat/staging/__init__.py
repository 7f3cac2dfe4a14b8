"""Jobs that put records behind the log ready-made.

Reading order: pieces, writer, placing, tails, roll_forward, publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubestore.core.doors import lazily

if TYPE_CHECKING:
    from rocketcompat.staging.writer import StagedLogWriter as StagedLogWriter

__all__ = ["StagedLogWriter"]
__getattr__ = lazily(__name__, {"StagedLogWriter": "writer"})
