"""A background service goes on after an error, stops when told to, and never vanishes silently."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rocketcompat.store.service_thread import ServiceThread
from tubestore.errors import StoreFailed, TubeStoreError


class Service(ServiceThread):
    """Does the given things, one a round; then says that it is done."""

    def __init__(self, *rounds: Callable[[], None]) -> None:
        super().__init__("Test")
        self._rounds = list(rounds)
        self.done = threading.Event()

    def work(self) -> float:
        if not self._rounds:
            self.done.set()
            return 60.0
        self._rounds.pop(0)()
        return 0.0

    def after_error(self) -> float:
        return 0.0


def fails(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def ended(service: Service) -> None:
    thread = service._thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_errors_are_kept_once_and_the_next_round_comes() -> None:
    same = OSError("no")
    service = Service(fails(same), fails(same), lambda: None, fails(TubeStoreError("else")))
    service.start()
    assert service.done.wait(30)
    service.shutdown()
    assert [str(problem) for problem in service.problems] == ["Test: no", "Test: else"]


def test_trouble_is_logged_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full, well = fails(OSError("full")), lambda: None
    service = Service(well, full, full, full, well, well, full, full, fails(OSError("else")), well)
    service.start()
    assert service.done.wait(30)
    service.shutdown()
    again = "Test: the service works again"
    assert [record.getMessage() for record in caplog.records] == [
        "Test: Test: full", again, "Test: Test: full", "Test: Test: else", again,
    ]  # fmt: skip


def test_a_failed_store_ends_its_service() -> None:
    service = Service(fails(StoreFailed("/s", "sync")), lambda: None)
    service.start()
    ended(service)
    assert not service.done.is_set()
    assert isinstance(service.problems[0], StoreFailed)
    assert isinstance(service.stopped, StoreFailed)
    assert not service.is_running


def test_an_unforeseen_error_is_a_problem_of_the_store() -> None:
    service = Service(fails(ZeroDivisionError("by accident")), lambda: None)
    service.start()
    ended(service)
    assert "stopped: ZeroDivisionError" in str(service.problems[0])
    assert isinstance(service.stopped, ZeroDivisionError)


def test_a_service_without_a_thread_is_shut_down_too() -> None:
    Service().shutdown()
