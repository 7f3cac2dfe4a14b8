"""Which calls to a disk something makes, to have each of them fail."""

from __future__ import annotations

from typing import Any

from tubestore.testing import FaultyVfs


class WatchingVfs(FaultyVfs):
    """Takes down the fallible calls that are made while it is `on`."""

    on = False

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        #: (kind, number of that kind), as `fail` wants them.
        self.noted: list[tuple[str, int]] = []

    def _pass(self, call: str, path: str) -> Any:
        if self.on:
            self.noted.append((call, sum(c == call for c, _ in self.noted) + 1))
        return super()._pass(call, path)

    def calls_until_the_record(self) -> list[tuple[str, int]]:
        """Of a publish: what could fail before its link, but for looking."""
        link = next(n for n, (call, _) in enumerate(self.noted) if call == "link")
        return [call for call in self.noted[:link] if call[0] not in ("read_file", "entries")]
