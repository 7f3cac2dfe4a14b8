"""Index and checkpoint as rows."""

from __future__ import annotations

import os

import pytest

from rocketcompat.formats import CHECKPOINT
from rocketcompat.index.items import key_hash
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_index_lists_headers_and_items_with_their_keys(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    real = golden("rocketmq", version, "keys-tags")
    files = command("index", real.store, "-f", "jsonl").rows
    (state,) = real.expected(type="store")
    assert len(files) > 1
    items = command("index", real.store, "--keys", "-f", "jsonl").rows
    assert len(items) == sum(row["used"] for row in files)
    for row in items:
        assert row["state"] == "ok"
        assert key_hash(row["topic"], row["key"]) == row["key_hash"]
        assert row["slot"] == row["key_hash"] % files[0]["slots"]
    keys = [
        key
        for m in real.expected(type="message")
        for key in [m["properties"].get("UNIQ_KEY"), *m["properties"].get("KEYS", "").split(" ")]
        if key
    ]
    # Keys of one message and one hash that a new file separates may change places.
    assert len(set(keys) - {row["key"] for row in items}) <= 1
    hashes = [key_hash("KeyTopic", key) for key in keys]
    assert sorted(row["key_hash"] for row in items) == sorted(hashes)
    name = os.path.basename(files[1]["path"])
    done = command("index", real.store, "--items", "--file", name, "--from", 3, "-n", 2,
                   "-f", "jsonl")  # fmt: skip
    assert [row["number"] for row in done.rows] == [3, 4]
    assert '"number":5' in done.err
    assert state["type"] == "store"


def test_index_reports_what_is_wrong(golden: GoldenFactory, command: Command) -> None:
    real = golden("rocketmq", "4.9.8", "index-broken-chain")
    slots = real.meta["config"]["maxHashSlotNum"]
    rows = command(
        "index", real.store, "--keys", "-f", "jsonl", "-o", f"maxHashSlotNum={slots}"
    ).rows
    assert "chain" in {row["state"] for row in rows}
    short = golden("rocketmq", "4.9.8", "index-short").store
    config = real.meta["config"]
    options = [f"--option={name}={config[name]}" for name in ("maxHashSlotNum", "maxIndexNum")]
    done = command("index", short, "-f", "jsonl", *options)
    assert done.code in (0, 2)
    assert "Traceback" not in done.err


def test_the_checkpoint_reports_where_a_recovery_begins(
    golden: GoldenFactory, command: Command
) -> None:
    real = golden("rocketmq", "5.3.3", "basic")
    raw = (real.store / "checkpoint").read_bytes()
    stored = CHECKPOINT.unpack_from(raw)._asdict()
    (row,) = command("checkpoint", real.store, "-f", "jsonl").rows
    assert {name: row[name] for name in stored} == stored
    least = min(stored["physic_msg_timestamp"], stored["logics_msg_timestamp"])
    assert row["min_timestamp"] == least - 3000
    assert row["state"] == "ok"
    (real.store / "checkpoint").write_bytes(raw[:100])
    assert command("checkpoint", real.store, "-f", "jsonl").rows[0]["state"] == "100 bytes"
    (real.store / "checkpoint").unlink()
    (row,) = command("checkpoint", real.store, "-f", "jsonl").rows
    assert (row["state"], row["physic_msg_timestamp"]) == ("missing", 0)
