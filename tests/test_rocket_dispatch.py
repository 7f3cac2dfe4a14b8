"""The dispatcher's thread: when it wakes, and when it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import dispatch


class ClearedLate(threading.Event):
    """An event that is cleared only when somebody has set it again: the worst moment there is."""

    def __init__(self) -> None:
        super().__init__()
        self._again = threading.Event()

    def set(self) -> None:
        super().set()
        self._again.set()

    def clear(self) -> None:
        self._again.wait()
        super().clear()


def test_a_close_while_the_thread_is_about_to_sleep_is_not_overslept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_JOIN_SECONDS", 2.0)
    store = rocketcompat.open(tmp_path, mode="w", background=False)
    store.dispatcher._wake = ClearedLate()
    store.dispatcher.start()
    thread = store.dispatcher._thread
    assert thread is not None
    store.close()
    asleep = thread.is_alive()
    store.dispatcher._wake.set()
    assert not asleep
