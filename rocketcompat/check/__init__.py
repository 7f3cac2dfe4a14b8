"""Cross-checks of log, queues, index and shards.

Reading order: findings, queues, index, shards, whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubestore.core.doors import lazily

if TYPE_CHECKING:
    from rocketcompat.check.whole import check as check

__all__ = ["check"]
__getattr__ = lazily(__name__, {"check": "whole"})
