"""Limits how often a peer is served: a token bucket."""

from __future__ import annotations


class Rate:
    """Counts events against a rate; those of one second may come at once."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second, self._at, self._level = per_second, now, 0.0

    def take(self, now: float) -> float:
        """Count an event; returns the seconds for which no other should come, 0 within the rate."""
        drained = (now - self._at) * self._per_second
        self._level, self._at = max(0.0, self._level - drained) + 1.0, now
        return max(0.0, self._level / self._per_second - 1.0)
