"""Job ids: every one of them for ever, in a few bytes."""

from __future__ import annotations

import json

from tubestore.staging.job_ids import JobIds


def test_ids_that_come_out_of_order_are_all_there() -> None:
    numbers = [5, 3, 4, 9, 0, 1, 10, 3]
    ids = JobIds([f"q:{n}" for n in numbers] + ["q:01", "q:", "q"])
    again = JobIds.from_json(json.loads(json.dumps(ids.as_json())))
    for n in range(12):
        assert (f"q:{n}" in again) == (n in numbers)
    assert all(other in again for other in ("q:01", "q:", "q"))
    assert "q:001" not in again
    assert again.as_json()["ranges"] == {"q": [[0, 1], [3, 5], [9, 10]]}
