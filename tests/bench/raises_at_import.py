"""A module that cannot be imported."""

from __future__ import annotations

_ = 1 // 0
