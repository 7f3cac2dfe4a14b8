"""What mends a damaged store: a plan, then a new file and a rename each.

Reading order: actions, overlay, log, places, queues, plan, apply, rebuild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubestore.core.doors import lazily

if TYPE_CHECKING:
    from rocketcompat.repair.apply import repair as repair

__all__ = ["repair"]
__getattr__ = lazily(__name__, {"repair": "apply"})
