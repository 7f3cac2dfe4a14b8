"""What a finding of `check` names: file, byte, a documented reason."""

from __future__ import annotations

from pathlib import Path

from tests.support.golden import GoldenFactory
from tubestore.offline.check import REASONS, Reason, check


def test_a_finding_names_the_file_and_the_byte(golden: GoldenFactory) -> None:
    root = golden("tubemq", "1.2.0", "torn").store
    (token,) = check(root, topic="tokenbad")
    assert Path(token.path) == root / "tokenbad-0" / "00000000000000000000.tube"
    with open(token.path, "rb") as file:
        file.seek(token.position + 4)
        assert file.read(4) == (0x02C99B5E).to_bytes(4, "big")
    (zeroed,) = check(root, topic="innerindexzero")
    assert Path(zeroed.path).name == "00000000000000000560.index"
    assert zeroed.position == 140
    assert zeroed.message.startswith("3 in a row")


def test_every_reason_of_a_finding_is_documented() -> None:
    assert set(REASONS) == set(Reason)
    assert {severity for severity, _ in REASONS.values()} == {"error", "warning"}
