"""The ids of finished jobs, which are never taken twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from tubestore.staging.job_files import NUMBERED, Batch


class LastBatch(NamedTuple):
    """The newest batch of a query: its number, and what it has."""

    number: int
    batch: Batch


class JobIds:
    """A set of job ids that stays small when they are numbered in order.

    Of a query's batches (`name:17`) it keeps what the newest one has: a query that goes on from
    its checkpoint repeats that one at most.

    >>> ids = JobIds(["load", "query:0", "query:1", "query:3"])
    >>> "query:1" in ids, "query:2" in ids, ids.as_json()["ranges"]
    (True, False, {'query': [[0, 1], [3, 3]]})
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._texts: set[str] = set()
        self._ranges: dict[str, list[list[int]]] = {}
        self._batches: dict[str, LastBatch] = {}
        #: Why these jobs, which are in the store in part, are never published.
        self.given_up: dict[str, str] = {}
        for job_id in ids:
            self.add(job_id)

    def __contains__(self, job_id: str) -> bool:
        numbered = NUMBERED.fullmatch(job_id)
        if numbered is None:
            return job_id in self._texts
        number = int(numbered[2])
        return any(first <= number <= last for first, last in self._ranges.get(numbered[1], ()))

    def newest(self, job_id: str) -> tuple[int, int | None, LastBatch | None]:
        """Return a batch's number, the newest of its query, and what is known of the newest.

        What is known may be of an older one, if another version wrote since.
        """
        numbered = NUMBERED.fullmatch(job_id)
        assert numbered is not None, job_id
        ranges = self._ranges.get(numbered[1])
        last = ranges[-1][1] if ranges else None
        return int(numbered[2]), last, self._batches.get(numbered[1])

    def add(self, job_id: str, batch: Batch | None = None) -> None:
        """Take an id in, and what its batch has; harmless when repeated."""
        numbered = NUMBERED.fullmatch(job_id)
        if numbered is not None and batch is not None:
            known = self._batches.get(numbered[1])
            if known is None or known.number <= int(numbered[2]):
                self._batches[numbered[1]] = LastBatch(int(numbered[2]), batch)
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
        """Return the object for the file."""
        content: dict[str, Any] = {"ids": sorted(self._texts), "ranges": self._ranges}
        if self._batches:
            content["batches"] = {
                name: {"number": last.number, **asdict(last.batch)}
                for name, last in self._batches.items()
            }
        if self.given_up:
            content["given_up"] = self.given_up
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> JobIds:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        found = cls(content["ids"])
        found._ranges = {
            str(name): [[int(first), int(last)] for first, last in ranges]
            for name, ranges in content["ranges"].items()
        }
        for name, given in content.get("batches", {}).items():
            batch = Batch.from_json(given)
            if batch is None:
                raise TypeError(f"there is no record of the newest batch of {name!r}")
            found._batches[str(name)] = LastBatch(int(given["number"]), batch)
        given_up = content.get("given_up", {})
        found.given_up = {str(job_id): str(reason) for job_id, reason in given_up.items()}
        return found
