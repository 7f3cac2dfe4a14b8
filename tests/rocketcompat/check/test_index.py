"""The index against the keys of the log."""

from __future__ import annotations

from pathlib import Path

from rocketcompat.check.whole import check
from rocketcompat.formats import INDEX_HEADER
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.checked import patch
from tests.support.rocket.files.checked import store_fixture as store_fixture


def test_a_flipped_bit_of_the_index_is_found(store: Path) -> None:
    (path,) = (store / "index").iterdir()
    item = INDEX_HEADER.size + 4 * 101 + 20 * 7
    raw = path.read_bytes()
    for at, reason in ((item, "item_surplus"), (item + 11, "item_surplus"), (item + 19, None)):
        patch(path, at, bytes([raw[at] ^ 1]))
        reasons = {row["reason"] for row in check(store)}
        assert "index_chain" in reasons or reason in reasons
        path.write_bytes(raw)
    patch(path, INDEX_HEADER.position("end_physical_offset") + 7, b"\x01")
    options = {"maxHashSlotNum": 101}
    assert [row["reason"] for row in check(store, options)] == ["index_header"]
