"""The table of structures, and a structure of the caller's in it: the example of `register`."""

from __future__ import annotations

import inspect
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.files.progress import ProgressFile
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.options import LAYOUTS
from rocketcompat.queues.recovery import sound_pieces
from rocketcompat.repair.rebuild import rebuild
from rocketcompat.store import structures
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.structures import Structure, register, unregister
from tests.support.rocket.inside import dispatcher_of, log_of, parts_of
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs, crash_states

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1000, max_hash_slot_num=4, max_index_num=50, layouts=LAYOUTS
)


@pytest.fixture
def example() -> Iterator[None]:
    """The structure `Count`, as the docstring of `register` has it."""
    text = inspect.getdoc(register)
    assert text is not None
    lines = text.splitlines()
    code = [line for line in lines if line.startswith("    ") or not line]
    exec(textwrap.dedent("\n".join(code)), {"Follower": Follower, "Structure": Structure,
                                            "register": register})  # fmt: skip
    yield
    unregister("count")


def opened(
    vfs: Vfs, clock: ManualClock, config: MessageStoreConfig = CONFIG
) -> DefaultMessageStore:
    return rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)


def count_of(store: DefaultMessageStore) -> Any:
    """Return (end of the log, records) as the structure has them."""
    dispatcher_of(store).dispatch_pending()
    count: Any = parts_of(store).of(structures.structures()[-1])
    return count.state


def put(store: DefaultMessageStore, count: int) -> None:
    for number in range(count):
        store.put_message(Message("T", b"x" * 50, keys=f"k{number}"))


@pytest.mark.gate
@pytest.mark.usefixtures("example")
def test_a_registered_structure_gets_every_record_whatever_crash_came_between() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    journal = vfs.record()
    with opened(vfs, clock) as store:
        put(store, 10)
        store.flush()
        put(store, 10)
        assert count_of(store) == (store.max_physical_offset, 20)
    with opened(vfs, clock) as store:
        put(store, 3)
        assert count_of(store)[1] == 23
    seen = 0
    for state in random.Random(seed).sample(list(crash_states(journal, seed=seed)), 60):
        with opened(state.vfs(clock), clock) as store:
            end, records = count_of(store)
            assert end == store.max_physical_offset, state
            pieces = sound_pieces(log_of(store), 0, 1 << 62)
            assert records == sum(len(piece.starts) for piece in pieces), state
            seen = max(seen, records)
    assert seen > 0


@pytest.mark.usefixtures("example")
def test_its_mark_spares_a_structure_the_log_that_it_has() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with opened(vfs, clock) as store:
        put(store, 10)
    known = ProgressFile(vfs, "/s").read()
    assert known is not None
    assert known[0].followers["count"] == known[0].log
    vfs.replace_file("/s/count/state", b"%d 1000" % known[0].log.synced)
    with opened(vfs, clock) as store:
        put(store, 1)
        assert count_of(store)[1] == 1001


@pytest.mark.usefixtures("example")
def test_a_registered_structure_is_rebuilt_and_its_state_shown(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG) as store:
        put(store, 10)
        store.flush()
        assert store.stats()["structures"]["count"] == {"behind_bytes": 0, "stopped": False}
        assert store.clean(dry_run=True)
        end = store.max_physical_offset
    (tmp_path / "count" / "state").write_text("0 0")
    directory = StoreDirectory(str(tmp_path), {"maxHashSlotNum": 4, "maxIndexNum": 50})
    quarantine = Quarantine(directory.vfs, directory.root)
    (row,) = rebuild(directory, ["count"], clock=ManualClock(), quarantine=quarantine)
    assert row["path"] == str(tmp_path / "count")
    assert (tmp_path / "count" / "state").read_text() == f"{end} 10"


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    "other",
    [
        Structure("count", "elsewhere", lambda place: None),  # type: ignore[arg-type,return-value]
        Structure("other", "consumequeue_ext", lambda place: None),  # type: ignore[arg-type,return-value]
        Structure("other", ".tubestore", lambda place: None),  # type: ignore[arg-type,return-value]
    ],
    ids=["name", "directory", "own directory"],
)
def test_a_name_or_a_directory_that_is_taken_is_refused(other: Structure[Any]) -> None:
    with pytest.raises(InvalidMessage, match="is there already"):
        register(other)
    assert len(structures.structures()) == 5


def test_a_structure_that_is_switched_off_is_not_made() -> None:
    clock = ManualClock()
    config = CONFIG.changed(layouts=frozenset({"index"}), message_index_enable=False)
    with opened(MemoryVfs(clock), clock, config) as store:
        assert parts_of(store).followers == []
