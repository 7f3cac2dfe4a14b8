"""A call that changes a disk is printed with what it changed."""

from __future__ import annotations

import pytest

from tubestore.testing.calls import Call


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("pwrite", "/a", 1, 40, b"abc"), "pwrite(/a, 3 bytes at 40)"),
        (Call("truncate", "/a", 1, 7), "truncate(/a, 7)"),
        (Call("rename", "/a", target="/b"), "rename(/a, /b)"),
        (Call("sync_directory", "/d"), "sync_directory(/d)"),
    ],
)
def test_a_call_is_printed_with_its_place_and_its_size(call: Call, text: str) -> None:
    assert str(call) == text
