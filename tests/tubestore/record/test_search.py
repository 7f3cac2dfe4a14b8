"""Looking for intact records among bytes of any kind (record_search.py)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import encode_row, make_row
from tubestore.core import kernels
from tubestore.record import search as record_search
from tubestore.record.layouts import DATA_HEADER, TOKEN_MESSAGE
from tubestore.record.records import HEADER_SIZE, inspect
from tubestore.record.search import WINDOW_BYTES, RecordSearch

TOKEN = TOKEN_MESSAGE.to_bytes(4, "big")


def record(body: bytes = b"hello", offset: int = 0) -> bytes:
    (header, payload), _ = encode_row(make_row(body), offset, 0)
    return header + payload


def search_in(data: bytes) -> RecordSearch:
    return RecordSearch(lambda position, size: data[position : position + size], 0, len(data))


def found_in(data: bytes, position: int = 0, end: int | None = None, index_from: int = 0) -> object:
    return search_in(data).find(position, len(data) if end is None else end, index_from)


@given(st.binary(max_size=200), st.integers(0, 2))
def test_the_next_record_is_found_behind_any_garbage(noise: bytes, tokens: int) -> None:
    noise += TOKEN * tokens
    data = noise + record(offset=56)
    assert found_in(data, 0, index_from=28) == len(noise)
    assert found_in(data, len(noise) + 1, index_from=28) is None
    assert found_in(data, 0, index_from=84) is None  # its offset is below
    assert found_in(data, 0, len(data) - 1, 28) is None  # it does not end before the end


@pytest.mark.parametrize("shift", range(-HEADER_SIZE - 1, 2))
def test_a_record_over_the_border_of_a_window_is_found(shift: int) -> None:
    at = WINDOW_BYTES + shift
    assert found_in(bytes(at) + record() + bytes(9)) == at


def test_a_record_whose_own_offset_is_no_multiple_of_an_entry_is_not_ours() -> None:
    assert found_in(record(offset=57)) is None
    assert found_in(record(offset=-1)) == 0  # TubeMQ 1.2.0 without caches


def test_one_search_finds_every_record_in_turn_and_from_any_place() -> None:
    data = b"".join(b"noise" + record(b"m" * n, 28 * n) for n in range(1, 40))
    search, position, found = search_in(data), 0, []
    while (at := search.find(position, len(data), 0)) is not None:
        found.append(at)
        position = at + 1
    assert len(found) == 39
    assert [search.find(at, len(data), 0) for at in reversed(found)] == found[::-1]


def test_bytes_that_a_writer_cut_away_meanwhile_hold_no_record() -> None:
    data = record() + record(b"x" * 1000, 28)
    search = RecordSearch(
        lambda position, size: data[position : position + size][:90], 0, len(data)
    )
    assert search.find(0, len(data), 0) == 0
    assert search.find(1, len(data), 0) is None


@given(st.integers(0, 1 << 32))
def test_what_is_found_is_what_a_look_at_every_byte_finds(seed: int) -> None:
    rng = random.Random(seed)
    parts = []
    for _ in range(rng.randrange(1, 12)):
        part = bytearray(record(rng.randbytes(rng.randrange(1, 80)), rng.choice((-1, 0, 28, 29))))
        if rng.random() < 0.5:
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        parts.append(bytes(part[: rng.choice((len(part), rng.randrange(len(part))))]))
    data = b"".join(parts)
    expected = []
    for position in range(len(data)):
        header, reason = inspect(data, position, len(data))
        if reason is None and (header.queue_logic_offset + 1) % 28 in (0, 1):
            expected.append(position)
    search, position, found = search_in(data), 0, []
    while (at := search.find(position, len(data), 0)) is not None:
        found.append(at)
        position = at + 1
    assert found == expected, f"seed {seed}"


# -- payloads that are made to be searched for long ---------------------------------------------


class Work:
    """Counts the bytes that are checked and read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
        self.checked = self.read = self.windows = 0
        self.data = data
        crc32 = kernels.crc32

        def counted(part: bytes, value: int = 0) -> int:
            self.checked += len(part)
            return crc32(part, value)

        monkeypatch.setattr(kernels, "crc32", counted)
        self.search = RecordSearch(self._part, 0, len(data))

    def _part(self, position: int, size: int) -> bytes:
        part = self.data[position : position + size]
        self.read += len(part)
        self.windows += 1
        return part


def headers_that_claim_everything(count: int, size: int) -> bytes:
    """Every 8 bytes begin a header with a token, a possible offset and a length to the end."""
    lengths = size - 8 * np.arange(count) - 4
    lengths -= (lengths * (1 << 32) + TOKEN_MESSAGE) % 28 // 4  # own offsets that can be
    return b"".join(int(n).to_bytes(4, "big", signed=True) + TOKEN for n in lengths.tolist())


@pytest.mark.parametrize("kind", ["tokens", "headers"])
def test_a_payload_full_of_tokens_is_searched_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 18
    data = (
        TOKEN * (size // 4) if kind == "tokens" else headers_that_claim_everything(size // 8, size)
    )
    work = Work(monkeypatch, data + record(offset=28))
    if kind == "headers":  # else they claim nothing, and the test would show nothing
        possible = record_search._possible(kernels.bytes_of(data), len(data))[0]
        assert len(possible) > size // 8 // 10
    assert work.search.find(0, len(work.data), 0) == size
    assert work.read <= 2 * len(work.data)
    assert work.checked <= len(work.data)


def test_going_on_behind_each_record_searches_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = DATA_HEADER.pack(
        length=1 << 17, token=TOKEN_MESSAGE, checksum=0, partition_id=0, queue_logic_offset=28,
        received_time=0, report_address=0, key_code=0, msg_id=0, flag=0,
    )  # fmt: skip
    work = Work(monkeypatch, (claims + record(b"m", 28)) * 2000 + bytes(1 << 17))
    position, count = 0, 0
    while (at := work.search.find(position, len(work.data), 0)) is not None:
        position = at + 1
        count += 1
    assert count == 2000
    assert work.checked <= len(work.data)
    assert work.windows <= 2 * (1 + len(work.data) // WINDOW_BYTES)
