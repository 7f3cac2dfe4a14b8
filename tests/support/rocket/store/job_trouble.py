"""Jobs that fail while they are published."""

from __future__ import annotations

from unittest import mock

import pytest

from rocketcompat import Message
from rocketcompat.staging.pieces import LogRecords
from tests.support.rocket.inside import dispatcher_of, opened_of
from tests.support.rocket.publishing import (
    CLOCK,
    ROOT,
    batch,
    numbered,
    opened,
    stage,
)
from tubestore.testing import MemoryVfs


def half_published(count: int) -> tuple[MemoryVfs, str]:
    """A store whose writer died behind the commit record; and the file that the job goes to."""
    inner = MemoryVfs(CLOCK)
    store = opened(inner)
    store.put_message(Message("orders", b"before"))
    pieces = stage(inner, "j", batch(numbered("a", count)))
    with (
        mock.patch("rocketcompat.staging.publish.roll_forward", side_effect=RuntimeError("killed")),
        pytest.raises(RuntimeError),
    ):
        store.publish("j", pieces)
    dispatcher_of(store).abandon()
    opened_of(store).give_back()
    store._closed = True
    record = LogRecords(inner, ROOT).pending()
    assert record is not None
    return inner, f"{ROOT}/{record.parts[0].path}"
