"""Records of the log as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcompat import Message
from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import rows_of
from rocketcompat.record.message_table import table_of
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, rocket_scenarios
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.selected import put


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_table_holds_what_the_rows_hold(golden: GoldenFactory, version: str) -> None:
    compared = 0
    for scenario in ("odd", "ipv6", "batch", "transactions", "compressed", "large", "lmq"):
        for piece in StoreDirectory(golden("rocketmq", version, scenario).store).scan_log():
            if not isinstance(piece, Gap):
                table = table_of(piece)
                table.validate(full=True)
                assert table.to_pylist(maps_as_pydicts="strict") == list(rows_of(piece))
                compared += len(piece)
    assert compared > 100
    assert "v2-topics" in rocket_scenarios("5.3.3")


def test_repeated_and_broken_properties_are_read_as_the_parser_reads_them(tmp_path: Path) -> None:
    texts = [
        "a\x01x\x02a\x01y\x02", "a\x01\x02\x01b\x02c\x01d", "none", "", "k\x01v\x01w",
        "\x02".join(f"n{i % 40}\x01{i}" for i in range(60)),
    ]  # fmt: skip
    put(tmp_path, [Message("T", b"b", properties=text) for text in texts])
    (piece,) = StoreDirectory(tmp_path).scan_log()
    assert not isinstance(piece, Gap)
    by_row = [row["properties"] for row in rows_of(piece)]
    assert table_of(piece)["properties"].to_pylist(maps_as_pydicts="strict") == by_row
    assert by_row[:5] == [{"a": "y"}, {"c": "d"}, {}, {}, {"k": "v\x01w"}]
