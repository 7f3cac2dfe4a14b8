"""The ids of finished jobs, which are never taken twice.

Next to read: `commit_records.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NUMBERED = re.compile(r"(.*):(0|[1-9]\d{0,17})", re.DOTALL)


class JobIds:
    """A set of job ids that stays small when they are numbered in order.

    >>> ids = JobIds(["load", "query:0", "query:1", "query:3"])
    >>> "query:1" in ids, "query:2" in ids, ids.as_json()["ranges"]
    (True, False, {'query': [[0, 1], [3, 3]]})
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._texts: set[str] = set()
        self._ranges: dict[str, list[list[int]]] = {}
        for job_id in ids:
            self.add(job_id)

    def __contains__(self, job_id: str) -> bool:
        numbered = _NUMBERED.fullmatch(job_id)
        if numbered is None:
            return job_id in self._texts
        number = int(numbered[2])
        return any(first <= number <= last for first, last in self._ranges.get(numbered[1], ()))

    def add(self, job_id: str) -> None:
        """Take an id in; harmless when repeated."""
        numbered = _NUMBERED.fullmatch(job_id)
        if numbered is None:
            self._texts.add(job_id)
        elif job_id not in self:
            number = int(numbered[2])
            ranges = [*self._ranges.get(numbered[1], ()), [number, number]]
            joined: list[list[int]] = []
            for first, last in sorted(ranges):
                if joined and joined[-1][1] + 1 == first:
                    joined[-1][1] = last
                else:
                    joined.append([first, last])
            self._ranges[numbered[1]] = joined

    def as_json(self) -> dict[str, Any]:
        """Return the object that stands in the file."""
        return {"ids": sorted(self._texts), "ranges": self._ranges}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> JobIds:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        found = cls(content["ids"])
        found._ranges = {
            str(name): [[int(first), int(last)] for first, last in ranges]
            for name, ranges in content["ranges"].items()
        }
        return found
