"""Messages given as columns become the bytes of single messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record.codec import encode_one
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from tests.support.inner_batches import CONFIG, opened, rows_of
from tests.support.rocket.files.encoded import NEWER, OLDER, STORED_AT
from tests.support.rocket.inside import dispatcher_of
from tubestore.errors import InvalidMessage


@pytest.mark.parametrize(
    "config",
    [OLDER, NEWER, NEWER.changed(enabled_append_prop_crc=True)],
    ids=["4.9.8", "5.3.3", "checksums"],
)
@pytest.mark.parametrize("hosts", [{}, {"store_host": "[::1]:10911"}], ids=["v4", "v6"])
def test_a_batch_of_columns_is_the_bytes_of_single_messages(
    config: MessageStoreConfig, hosts: dict[str, str]
) -> None:
    count, born = 40, (None, "9.8.7.6:5", "[fe80::1]:7")
    topics = ["T0", "T1", "é" * 60 if config is OLDER else "é" * 64]
    table = {
        "topic": pa.array([topics[i % 3] for i in range(count)]).dictionary_encode(),
        "queue_id": pa.array([i % 5 for i in range(count)], pa.int32()),
        "body": [bytes(i) for i in range(count)],
        "tags": [None if i % 3 == 0 else "é" for i in range(count)],
        "keys": [[] if i % 4 == 0 else [f"k{i}", "b"] for i in range(count)],
        "flag": list(range(count)),
        "born_host": [born[i % 3 if hosts else i % 2] for i in range(count)],
        **{name: [host] * count for name, host in hosts.items()},
    }
    encoded = encode_columns(table, config)
    places = encoded.bounds[:-1] + 12_345
    encoded.place(np.arange(count), places, STORED_AT)
    for i in range(count):
        message = Message(
            topics[i % 3],
            bytes(i),
            None if i % 3 == 0 else "é",
            None if i % 4 == 0 else [f"k{i}", "b"],
            queue_id=i % 5,
            flag=i,
            born_host=table["born_host"][i] or "127.0.0.1:0",
            **hosts,  # type: ignore[arg-type]
        )
        one = encode_one(prepare(message, config), i, int(places[i]), STORED_AT)
        assert bytes(encoded.data[encoded.bounds[i] : encoded.bounds[i + 1]]) == one


def test_inner_batches_are_not_encoded_as_columns_without_their_offsets(tmp_path: Path) -> None:
    for config in (CONFIG, CONFIG.changed(compat="4.9.8")):
        with pytest.raises(InvalidMessage, match="put_inner_batch"):
            encode_columns({"topic": ["B"], "sys_flag": [0x80]}, config)
    with opened(tmp_path) as store:
        store.put_columns({"topic": ["B"] * 3, "body": [b"x"] * 3})
        dispatcher_of(store).dispatch_pending()
        assert [row[1:] for row in rows_of(store)] == [(0, 1), (1, 1), (2, 1)]
