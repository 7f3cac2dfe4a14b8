"""What recovery asks of a quarantine; `quarantine.py` has the one that is used."""

from __future__ import annotations

from typing import Protocol


class Keeper(Protocol):
    """Where a recovery puts what it drops without a proof that it is torn."""

    def move(self, path: str) -> str:
        """Move a file or a directory away."""

    def keep_tail(self, path: str, position: int) -> str:
        """Copy the bytes of a file from a position on."""

    def sync(self) -> None:
        """Make durable what was moved and copied."""
