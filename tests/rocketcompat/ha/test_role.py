"""A broker is asked for its role."""

from __future__ import annotations

import struct

import pytest

from rocketcompat.ha.role import broker_options
from tests.support.rocket.store.answers import answer, broker


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"HTTP/1.1 400\r\n\r\n", answer(b"x=1", code=16), struct.pack(">ii", 1 << 30, 4),
        struct.pack(">ii", -5, 9), answer(b"a=1")[:-2], struct.pack(">ii", 9, 5) + b"{{{{{",
        struct.pack(">ii", 6, 2) + b"[]",
    ],
)  # fmt: skip
def test_an_answer_that_is_not_a_brokers_gives_no_role(bad: bytes) -> None:
    with broker(bad) as port:
        assert broker_options("127.0.0.1", port) is None


def test_a_brokers_answer_gives_its_options() -> None:
    with broker(answer(b"brokerRole=ASYNC_MASTER\nbrokerName=a b\n")) as port:
        found = broker_options("127.0.0.1", port)
    assert found == {"brokerRole": "ASYNC_MASTER", "brokerName": "a b"}
