"""The field that made a put fail is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rocket.store.opened import opened
from tubestore.errors import (
    InvalidMessage,
)


def test_what_is_no_message_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for given, kind in ((b"a body alone", "bytes"), ({"topic": "T"}, "dict")):
            with pytest.raises(InvalidMessage, match=f"Message is needed, not {kind}"):
                store.put_message(given)  # type: ignore[arg-type]
