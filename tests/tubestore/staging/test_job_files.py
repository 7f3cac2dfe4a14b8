"""What describes the files of a job: sent as JSON, and refused when it makes no sense."""

from __future__ import annotations

import json

import pytest

from tubestore.errors import InvalidMessage, InvalidName
from tubestore.staging.job_files import StagedFile, check_job_id, staging_directory


def staged(**values: object) -> dict[str, object]:
    plain = StagedFile("t", 0, "a1-0", 2, 120, 5, 6, 1, False, "00", "00").as_json()
    return {**plain, **values}


@pytest.mark.parametrize("job_id", ["", "x" * 201, "a\nb", None, 7])
def test_an_id_is_a_short_printable_text(job_id: object) -> None:
    with pytest.raises(InvalidName):
        check_job_id(job_id)  # type: ignore[arg-type]


def test_every_id_has_a_directory_of_its_own_below_the_store() -> None:
    ids = ["a", "a/b", "..", ".", "a%2Fb", "\u00e9" * 200, "\u00e9" * 199 + "x", "A"]
    directories = [staging_directory("/store", job_id) for job_id in ids]
    assert len(set(directories)) == len(ids)
    for directory in directories:
        assert directory.startswith("/store/.tubestore/staging/job-")
        assert "/" not in directory.removeprefix("/store/.tubestore/staging/")
        assert len(directory.rpartition("/")[2].encode()) <= 255


def test_descriptions_of_staged_files_survive_json() -> None:
    one = StagedFile.from_json(staged())
    assert StagedFile.from_json(json.loads(json.dumps(one.as_json()))) == one
    one.check()


def test_a_description_of_an_earlier_version_has_no_place_and_is_synced() -> None:
    later = ("index_start", "data_start", "synced")
    earlier = {name: value for name, value in staged().items() if name not in later}
    assert len(earlier) == len(staged()) - len(later)
    one = StagedFile.from_json(earlier)
    assert (one.index_start, one.data_start, one.synced) == (0, 0, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": "2"},
        {"rows": True},
        {"extra": 1},
        {"store_id": 1.0},
    ],
)
def test_what_is_no_description_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match="not the description"):
        StagedFile.from_json(staged(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../a"},
        {"name": ".a"},
        {"name": "a/b"},
        {"store_id": 10_000},
        {"store_id": -1},
        {"partitions": 0},
        {"rows": 0},
        {"index_start": -28},
        {"data_start": -1},
        {"topic": "../t"},
    ],
)
def test_a_description_that_leaves_the_store_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((InvalidMessage, InvalidName)):
        StagedFile.from_json(staged(**wrong)).check()
