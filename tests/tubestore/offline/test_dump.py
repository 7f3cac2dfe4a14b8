"""`tubestore.offline.dump`: every row of a directory, against what the real classes saw in it."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.golden import Golden, GoldenFactory, tube_scenarios
from tests.support.tube import tree_digest
from tubestore.offline.dump import DUMP_SCHEMA, RAW_SCHEMA, dump, rows_of
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY

Rows = dict[tuple[str, int], dict[str, Any]]

#: Scenarios in which nothing was damaged; the real classes' rows are right there.
CLEAN = [
    "aged",
    "attributes",
    "basic",
    "empty",
    "filtered",
    "foreign",
    "large",
    "memory",
    "multistore",
    "offsets",
    "rolled",
]
#: Where a correct recovery shows more, or other, rows than the real classes: the damage, and
#: how many of our rows are "ok". The real ones lose what has no entry, cut the index behind one
#: bad entry, do not open at all, or hand out payloads whose checksum is wrong.
BETTER = {
    "crash": {"crashdataonly-0": 187, "crashhalfdata-0": 177, "crashpoison-0": 101},
    "direct": {"direct-0": 140},
    "timeroll": {"oldtornindex-0": 56},
    "torn": {
        "bothtorn-0": 55,
        "entryhuge-0": 56,
        "entrypartition-0": 55,
        "entrypos-0": 56,
        "entrysize-0": 56,
        "entrysmall-0": 56,
        "entryzero-0": 56,
        "headerother-0": 55,
        "index13-0": 56,
        "indexcut5-0": 56,
        "indexdirgone-0": 56,
        "indexgone-0": 56,
        "indexnegative-0": 56,
        "indexshort-0": 56,
        "indexzeros-0": 56,
        "innercut-0": 56,
        "innerindexgone-0": 56,
        "innerindexzero-0": 56,
        "lengthsmall-0": 55,
        "overlap-0": 56,
        "payloadbit-0": 55,
        "strayindex-0": 56,
        "straytube-0": 56,
    },
}


def dumped(root: Path | str, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in dump(root, **options) for row in rows_of(batch)]


def by_place(rows: list[dict[str, Any]]) -> Rows:
    return {(f"{r['topic']}-{r['store_id']}", r["index_offset"]): r for r in rows}


def assert_same(row: dict[str, Any], raw: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare a row with what the real classes found at its place."""
    names = ("dataOffset", "size", "partitionId", "keyCode", "timeRecv")
    ours = ("data_offset", "data_size", "partition", "key_code", "received_time")
    assert [row[n] for n in ours] == [wanted[n] for n in names]
    assert (row["state"] == "ok") == (wanted["state"] == "ok")
    if row["state"] != "ok":
        return
    record = wanted["record"]
    names = ("msgId", "flag", "reportIp", "checksum")
    assert [row[n] for n in ("msg_id", "flag", "report_address", "checksum")] == [
        record[n] for n in names
    ]
    if "payload" in record:
        assert raw["payload"] == base64.b64decode(record["payload"])
    if "client" in wanted:
        assert row["body"] == base64.b64decode(wanted["client"]["data"])
        assert row["attributes"] is not None
    else:
        assert row["body"] == raw["payload"]
        assert row["attributes"] is None


def expected_of(golden: Golden, left_out: set[str]) -> Iterator[tuple[tuple[str, int], Any]]:
    for wanted in golden.expected(kind="message"):
        if wanted["store"] not in left_out:
            yield (wanted["store"], wanted["indexOffset"]), wanted


@pytest.mark.parametrize("scenario", tube_scenarios())
def test_a_dump_has_the_rows_that_the_real_classes_see(
    golden: GoldenFactory, scenario: str
) -> None:
    store = golden("tubemq", "1.2.0", scenario)
    better = set(BETTER.get(scenario, {}))
    rows = by_place(dumped(store.store))
    raws = by_place(dumped(store.store, raw=True))
    expected = dict(expected_of(store, better))
    for place, wanted in expected.items():
        assert_same(rows.pop(place), raws[place], wanted)
    assert {shard for shard, _ in rows} <= better | {"indexnegative-0", "indexzeros-0"}


@pytest.mark.parametrize("scenario", sorted(BETTER))
def test_damaged_shards_show_what_a_correct_recovery_would_show(
    golden: GoldenFactory, scenario: str
) -> None:
    store = golden("tubemq", "1.2.0", scenario)
    good: Counter[str] = Counter()
    for row in dumped(store.store):
        good[f"{row['topic']}-{row['store_id']}"] += row["state"] == "ok"
    assert {shard: good[shard] for shard in BETTER[scenario]} == BETTER[scenario]


def test_rows_come_by_topic_store_and_index_offset(golden: GoldenFactory) -> None:
    rows = dumped(golden("tubemq", "1.2.0", "multistore").store)
    places = [(r["topic"], r["store_id"], r["index_offset"]) for r in rows]
    assert places == sorted(places)
    assert len(set(places)) == 840


def test_a_dump_changes_no_byte_and_no_time(golden: GoldenFactory) -> None:
    store = golden("tubemq", "1.2.0", "torn").store
    before = tree_digest(store)
    dumped(store)
    assert tree_digest(store) == before


@pytest.mark.parametrize("damaged", ["payloadbit", "tokenbad", "entrypartition", "datacut7"])
def test_one_damaged_message_is_one_row_with_a_state(golden: GoldenFactory, damaged: str) -> None:
    states = {
        "payloadbit": "bad_checksum",
        "tokenbad": "bad_record",
        "entrypartition": "entry_differs",
        "datacut7": "missing",
    }
    rows = dumped(golden("tubemq", "1.2.0", "torn").store, topic=damaged)
    assert Counter(r["state"] for r in rows) == {"ok": 55, states[damaged]: 1}


def test_entries_whose_data_retention_removed_are_expired(golden: GoldenFactory) -> None:
    rows = dumped(golden("tubemq", "1.2.0", "aged").store, topic="aged")
    assert Counter(r["state"] for r in rows) == {"expired": 80, "ok": 56}
    assert all(r["body"] is None for r in rows if r["state"] == "expired")


def test_trusting_the_index_shows_its_entries_and_no_more(golden: GoldenFactory) -> None:
    store = golden("tubemq", "1.2.0", "crash").store
    rows = dumped(store, topic="crashdataonly", trust_index=True)
    assert len(rows) == 160
    rows = dumped(store, topic="crashindexonly", trust_index=True)
    assert Counter(r["state"] for r in rows) == {"ok": 160, "missing": 27}


def test_one_partition_and_an_offset_to_go_on_from(golden: GoldenFactory) -> None:
    store = golden("tubemq", "1.2.0", "basic").store
    whole = dumped(store)
    some = dumped(store, partition=3, start_at=5600)
    assert some == [r for r in whole if r["partition"] == 3 and r["index_offset"] >= 5600]
    assert some == dumped(store, partition=3, start_at=5600, trust_index=True)


def test_batches_have_the_declared_schemas(golden: GoldenFactory) -> None:
    store = golden("tubemq", "1.2.0", "torn").store
    assert {batch.schema for batch in dump(store)} == {DUMP_SCHEMA}
    assert {batch.schema for batch in dump(store, raw=True)} == {RAW_SCHEMA}


def test_what_our_engine_wrote_is_dumped_beside_its_writer(tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "s", background=False) as store:
        topic = store.create_topic("t", partitions=4, stores=2)
        for number in range(100):
            topic.append(b"%d" % number, key=str(number), filter_item="f", attributes={"n": "v"})
        store.flush()
        rows = dumped(tmp_path / "s")
    bodies = defaultdict(list)
    for row in rows:
        bodies[row["partition"]].append(int(row["body"]))
        assert row["state"] == "ok"
        assert row["attributes"]["$msgType$"] == "f"
        assert row["attributes"]["n"] == "v"
    assert sorted(n for numbers in bodies.values() for n in numbers) == list(range(100))
    assert all(numbers == sorted(numbers) for numbers in bodies.values())


def test_a_directory_that_is_no_store_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "t-0" / "index").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for path, hint in [
        (tmp_path / "t-0", "the directory above"),
        (tmp_path / "absent", "no such directory"),
        (tmp_path / "other", "no store"),
    ]:
        with pytest.raises(tubestore.NotAStore, match=hint):
            dumped(path)


def test_a_sound_record_is_shown_though_its_entry_and_header_contradict_each_other(
    tmp_path: Path,
) -> None:
    root = tmp_path / "s"
    with tubestore.open(root, background=False) as store:
        topic = store.create_topic("t", partitions=4)
        for number in range(4):
            topic.append(b"message %d" % number, partition=2)
    for path, layout, changed in (
        (root / "t-0" / "index" / f"{0:020d}.index", INDEX_ENTRY, {"data_size": 101}),
        (
            root / "t-0" / f"{0:020d}.tube",
            DATA_HEADER,
            {"partition_id": 3, "queue_logic_offset": 28},
        ),
    ):
        raw = bytearray(path.read_bytes())
        at = 2 * (len(raw) // 4)
        values = layout.unpack_from(raw, at)._replace(**changed)
        raw[at : at + layout.size] = layout.pack(**values._asdict())
        path.write_bytes(raw)
    row = dumped(root, raw=True)[2]
    assert (row["state"], row["payload"]) == ("entry_differs", b"message 2")
    assert (row["partition"], row["data_size"]) == (2, 61)
