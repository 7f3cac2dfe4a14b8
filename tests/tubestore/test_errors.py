"""Errors say where, keep their facts, and survive the way to another process."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import tubestore
from tubestore import errors
from tubestore.messages import Ack

EXAMPLES = [
    errors.TubeStoreError("something", 1),
    errors.CorruptRecord("/s/t-0/0.tube", 17, "token"),
    errors.StoreClosed("t-0 is closed"),
    errors.StoreFailed("/s/t-0", "sync: EIO"),
    errors.StoreLocked("/s", "pid 7"),
    errors.JobTaken("copy:3", "query q has written it"),
    errors.StoreBusy("t-0: both buffers stayed full"),
    errors.DiskFull("/s/t-0", "no space"),
    errors.StorageError("/s/t-0", "Input/output error", errno.EIO),
    errors.ReadOnlyStore("/s was opened with mode='r'"),
    errors.NotAStore("/s", "no such directory"),
    errors.MessageTooLarge(11, 10, "payload"),
    errors.InvalidMessage("row 3: no body"),
    errors.InvalidName("a/b", "no slash"),
    errors.InvalidOption("maxSplitBytes", "a size such as 128m"),
    errors.UnknownTopic("nope"),
    errors.TopicExists("logs", "it has other settings"),
    errors.OffsetOutOfRange(5, 28, 56),
    errors.OutputIncomplete("g", "the disk is full"),
    errors.MemberFenced("g", "a", "its session has ended"),
    errors.DataLoss("from 5 to 7"),
    errors.BatchError("disk full", [Ack(0, 0, "fsync"), None]),
]
each_error = pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)


def test_there_is_an_example_of_every_error() -> None:
    defined = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)}
    assert {type(e) for e in EXAMPLES} == defined


@each_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(error: errors.TubeStoreError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


@each_error
def test_an_error_survives_copying_and_raising(error: errors.TubeStoreError) -> None:
    with pytest.raises(errors.TubeStoreError) as caught:
        raise copy.copy(error)
    assert str(caught.value) == str(error)


@each_error
def test_an_error_has_a_text(error: errors.TubeStoreError) -> None:
    assert len(str(error)) > 8
    assert type(error).__name__ in repr(error)


def _fail() -> None:
    raise errors.CorruptRecord("/s/0.tube", 5, "token")


@pytest.mark.gate
def test_an_error_comes_back_from_a_worker_process() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(errors.CorruptRecord) as caught,
    ):
        pool.submit(_fail).result()
    assert caught.value.position == 5


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (errors.StoreBusy, TimeoutError),
        (errors.DiskFull, OSError),
        (errors.MessageTooLarge, ValueError),
        (errors.InvalidMessage, ValueError),
        (errors.InvalidName, ValueError),
        (errors.UnknownTopic, KeyError),
    ],
)
def test_a_caller_without_our_types_catches_the_usual_errors(error: type, family: type) -> None:
    assert issubclass(error, family)
    assert issubclass(error, errors.TubeStoreError)


def test_a_full_disk_is_an_error_of_the_operating_system() -> None:
    failed = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/s/t-0/0.tube")
    error = errors.failed_write("/s/t-0", failed)
    assert isinstance(error, errors.DiskFull)
    assert (error.errno, error.strerror) == (errno.EDQUOT, os.strerror(errno.EDQUOT))
    assert (error.filename, error.path) == ("/s/t-0", "/s/t-0")
    found = pickle.loads(pickle.dumps(error))
    assert (found.errno, found.strerror, found.filename) == (
        error.errno,
        error.strerror,
        error.filename,
    )
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.filename == "/s/t-0/0.tube"
    assert errors.DiskFull("/s", "no space").errno == errno.ENOSPC


@each_error
def test_an_error_reports_that_nothing_was_taken_unless_it_has_better_facts(
    error: errors.TubeStoreError,
) -> None:
    assert error.taken == "no"
    assert isinstance(error, errors.OffsetOutOfRange) or error.offset is None


def test_what_was_taken_survives_pickling() -> None:
    error = errors.DiskFull("/s/t-0", "no space")
    error.taken, error.offset = "yes", 28
    found = pickle.loads(pickle.dumps(error))
    assert (found.taken, found.offset) == ("yes", 28)


@each_error
def test_a_kept_error_comes_again_with_the_same_facts(error: errors.TubeStoreError) -> None:
    fresh = errors.again(error)
    assert fresh is not error
    assert type(fresh) is type(error)
    assert (str(fresh), fresh.args, vars(fresh)) == (str(error), error.args, vars(error))
    assert fresh.__cause__ is error


def test_a_note_on_one_raise_does_not_come_with_the_next() -> None:
    kept = errors.StoreClosed("t-0 is closed")
    for fresh in (errors.again(kept), errors.again(kept)):
        fresh.add_note("while closing")
        assert fresh.__notes__ == ["while closing"]
    kept.add_note("of the first raise")
    assert not hasattr(errors.again(kept), "__notes__")


def test_every_error_is_a_name_of_the_package() -> None:
    for example in EXAMPLES:
        assert getattr(tubestore, type(example).__name__) is type(example)


def test_an_offset_that_is_not_there_names_where_to_go_on() -> None:
    assert str(errors.OffsetOutOfRange(5, 28, 56)).endswith("[28, 56]: removed; go on at 28")
    assert str(errors.OffsetOutOfRange(84, 28, 56)).endswith(": not there yet; the end is 56")
