"""check: what is wrong in a store's directory, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.findings import PER_FILE_MAX, REASONS
from rocketcompat.check.whole import check, check_store
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import INDEX_HEADER
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.queues import QueueViews
from rocketcompat.options import LAYOUTS
from rocketcompat.record.columns import RecordColumns
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import GoldenFactory, rocket_scenarios
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.inner_batches import CONFIG, opened, put_some
from tests.support.rocket.files.checked import patch
from tests.support.rocket.files.checked import store_fixture as store_fixture
from tubestore.errors import CorruptRecord

VERSIONS = ["4.9.8", "5.3.3"]

CLEAN = ["basic", "rolled", "keys-tags", "crash", "pull-limits", "batch", "transactions", "delayed"]

CLEAN += ["compressed", "ipv6", "lmq", "cq-ext", "odd", "restarts", "expired", "expired-most"]

#: Damaged scenarios, and what must be among the findings.
DAMAGED = {
    "torn-half": {"torn", "unit_surplus", "item_surplus"},
    "stale-units": {"stale", "unit_surplus", "item_missing"},
    "flip-body-middle": {"damaged", "unit_damaged"},
    "bad-magic-last-file": {"torn", "unit_surplus"},
    "cl-middle-file-missing": {"file_missing", "unit_damaged"},
    "cl-wrong-length": {"size"},
    "cq-wrong-length": {"size"},
    "cq-empty-last-file": {"empty_queue_file"},
    "cq-hole": {"unit_missing"},
    "cq-tail-zeroed": {"unit_missing"},
    "cq-one-queue-deleted": {"unit_missing"},
    "stray-dir-in-commitlog": {"name"},
    "index-broken-chain": {"index_chain"},
}


def cases(*names: str) -> list[tuple[str, str]]:
    known = {version: set(rocket_scenarios(version)) for version in VERSIONS}
    return [(v, name) for v in VERSIONS for name in names if name in known[v]]


@pytest.mark.parametrize(("version", "scenario"), cases(*CLEAN))
def test_what_the_real_classes_wrote_is_clean(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    """Also after a crash: mapped files of a killed process are whole."""
    assert list(check(golden("rocketmq", version, scenario).store)) == []


@pytest.mark.parametrize(("version", "scenario"), cases(*DAMAGED))
def test_every_kind_of_damage_is_found(golden: GoldenFactory, version: str, scenario: str) -> None:
    store = golden("rocketmq", version, scenario).store
    findings = list(check(store))
    reasons = {row["reason"] for row in findings}
    assert reasons >= DAMAGED[scenario]
    assert reasons <= set(REASONS)
    for row in findings:
        assert row["path"].startswith(str(store))
        assert row["severity"] in ("error", "warning")
        assert row["position"] >= 0


def test_a_flipped_bit_of_a_body_is_found_where_it_is(store: Path) -> None:
    log = store / "commitlog" / "00000000000000000000"
    patch(log, 298 + 88, b"\xff")
    (damaged,) = [row for row in check(store) if row["reason"] == "damaged"]
    assert (damaged["path"], damaged["position"]) == (str(log), 298)
    assert damaged["severity"] == "error"


def test_a_wrong_checkpoint_is_found(store: Path) -> None:
    (store / "checkpoint").write_bytes(b"short")
    assert [row["reason"] for row in check(store)] == ["checkpoint"]
    (store / "checkpoint").unlink()
    assert [row["reason"] for row in check(store)] == ["checkpoint"]


def test_many_findings_of_one_kind_are_counted_and_not_listed(store: Path) -> None:
    (path,) = (store / "index").iterdir()
    for number in range(10, 60):
        patch(path, INDEX_HEADER.size + 4 * 101 + 20 * number + 4, b"\x00\x00\x7f")
    rows = [row for row in check(store, {"maxHashSlotNum": 101})
            if row["reason"] == "item_surplus"]  # fmt: skip
    assert len(rows) == PER_FILE_MAX + 1
    assert rows[-1]["message"] == "30 more of these"


class Growing(StoreDirectory):
    """A directory in which a writer puts more whenever the log was looked through, and later."""

    put: Callable[[], None] = staticmethod(lambda: None)

    def scan_log(self, *args: Any, **given: Any) -> Iterator[RecordColumns | Gap]:
        yield from super().scan_log(*args, **given)
        if not args:
            self.put()

    def queue_names(self, *args: Any) -> Iterator[tuple[str, int]]:
        self.put()
        return super().queue_names(*args)

    def index_paths(self) -> list[str]:
        self.put()
        return super().index_paths()


def test_what_a_writer_puts_meanwhile_is_no_finding(tmp_path: Path) -> None:
    """Queues, index and shards are read after the log, and know of more than was seen of it."""
    numbers = itertools.count()
    layouts = frozenset({"consume_queue", "index", "tube"})
    with opened(tmp_path / "s", CONFIG.changed(layouts=layouts)) as store:

        def put() -> None:
            key = [f"k{next(numbers)}"]
            store.put_message(Message("T", b"one", keys=key))
            put_some(store)
            last = store.put_message(Message("U", b"a topic of its own", keys=key))
            assert store.wait_dispatched(last.physical_offset)
            store.flush()

        put()
        directory = Growing(tmp_path / "s", {"maxHashSlotNum": 5, "maxIndexNum": 50})
        directory.put = put
        assert list(check_store(directory)) == []
        assert next(numbers) > 4, "nothing was put meanwhile"
        states = [set(view.states.tolist()) for view in QueueViews(directory)]
        assert states == [{"ok"}] * 3


def test_a_record_with_a_wrong_checksum_of_its_own_is_found_and_never_delivered(
    tmp_path: Path,
) -> None:
    config = MessageStoreConfig(
        mapped_file_size_commit_log=64 << 10, compat="5.3.3", enabled_append_prop_crc=True,
        force_verify_prop_crc=True, layouts=frozenset({"consume_queue"}),
    )  # fmt: skip
    with rocketcompat.open(tmp_path, "w", config) as store:
        puts = [store.put_message(Message("T", b"body", tags="paid")) for _ in range(3)]
    places = [put.physical_offset for put in puts]
    log = tmp_path / "commitlog" / f"{0:020d}"
    patch(log, log.read_bytes().index(b"paid", places[1]), b"q")
    damaged = (str(log), places[1])
    options = {"messageIndexEnable": False}
    for row in check(tmp_path, options):
        assert row["reason"] != "damaged"
    strict = {**options, "forceVerifyPropCRC": True}
    found = [
        (r["path"], r["position"]) for r in check(tmp_path, strict) if r["reason"] == "damaged"
    ]
    assert found == [damaged]
    with rocketcompat.open(tmp_path, "r", config) as store:  # closed cleanly: nothing is scanned
        assert store.problems == []
        _delivers_all_but(store, places)
    (tmp_path / ".tubestore" / "progress.json").unlink()
    (tmp_path / "abort").touch()
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        assert [(p.path, p.position) for p in store.problems] == [damaged]
        _delivers_all_but(store, places)
        page = store.read_queue("T", 0)
        assert page.batch["physical_offset"].to_pylist() == [places[0], places[2]]
        assert [(p.path, p.position) for p in page.problems] == [damaged]
    loose = config.changed(force_verify_prop_crc=False)
    with rocketcompat.open(tmp_path, "r", loose) as store:  # what is in `problems` is not delivered
        assert [(p.path, p.position) for p in store.problems] == [damaged]
        _delivers_all_but(store, places)


def _delivers_all_but(store: DefaultMessageStore, places: list[int]) -> None:
    """The second of three records is damaged."""
    entries = store.get_message("T", 0, 0).entries
    assert [isinstance(entry, CorruptRecord) for entry in entries] == [False, True, False]
    assert store.look_message(places[2]).properties["TAGS"] == "paid"
    with pytest.raises(CorruptRecord, match="checksum of the record"):
        store.look_message(places[1])


@pytest.mark.parametrize("name", ["store.json", "topics.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"format": 99}', b'{"format": 1e999}']
)
def test_damaged_state_of_the_shards_is_a_finding_beside_all_others(
    tmp_path: Path, name: str, content: bytes
) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=LAYOUTS)
    with rocketcompat.open(tmp_path, "w", config) as store:
        store.put_message(Message("T", b"body"))
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "tube" / ".tubestore" / name).write_bytes(content)
    found = {(Path(row["path"]).name, row["reason"]) for row in check(tmp_path)}
    assert ("checkpoint", "checkpoint") in found
    assert {("tube", "shards_closed"), (name, "bad_state")} & found
