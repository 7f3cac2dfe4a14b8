"""One dispatcher that hands what was put to the structures built from the log.

Reading order: protocols, feed, gatherer, dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubestore.core.doors import lazily

if TYPE_CHECKING:
    from rocketcompat.dispatch.dispatcher import ReputMessageService as ReputMessageService

__all__ = ["ReputMessageService"]
__getattr__ = lazily(__name__, {"ReputMessageService": "dispatcher"})
