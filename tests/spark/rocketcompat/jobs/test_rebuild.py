"""Queues and index built split by split: the bytes that one process builds, whatever the log is."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.check.whole import check
from rocketcompat.files.progress import ProgressFile
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.rebuild import rebuild as rebuild_here
from rocketcompat.repair.rebuild import structures_to_build
from rocketcompat.spark.jobs import rebuild as rebuilding
from rocketcompat.spark.jobs.rebuild import STRUCTURES, plan_rebuild, rebuild
from rocketcompat.spark.jobs.rebuild_tasks import BuildJob, ScanJob
from tests.spark.rocket_stores import CONFIG, write_rocket_store
from tests.support.golden import ROCKET_VERSIONS, unpack
from tubestore.clock import SystemClock
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import OsVfs
from tubestore.errors import InvalidMessage, StoreLocked

pytestmark = pytest.mark.usefixtures("small_waves")
COUNT = 1500
SPLIT = 30_000
#: What a store without inner batches has.
PLAIN = ("consumequeue", "index")
#: Rolled files, times of delivery, damage, torn ends, queues of which the log says nothing.
GOLDEN = ["rolled", "delayed", "flip-body-middle", "bad-size-middle", "torn-half", "expired-most"]
#: What a directory does not say of itself once its index is gone.
GEOMETRY = {"maxHashSlotNum": 100, "maxIndexNum": 400}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rebuilding") / "store"
    write_rocket_store(root, COUNT)
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        for number in range(60):  # delayed, prepared, rolled back, without keys, elsewhere too
            store.put_message(
                Message(
                    f"topic{number % 5}", b"x" * number, sys_flag=(0, 4, 8, 12)[number % 4],
                    delay_level=3 if number % 8 == 0 else 0, queue_id=number % 3,
                    keys=["a", "b"] if number % 3 else None,
                )
            )  # fmt: skip
    return root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def files_of(root: Path) -> dict[str, bytes]:
    """The structures' files; index files by their number, since their names are times."""
    found = {}
    for name in (*STRUCTURES, "consumequeue_ext"):
        paths = [path for path in sorted((root / name).rglob("*")) if path.is_file()]
        for number, path in enumerate(paths):
            key = str(number) if name == "index" else str(path.relative_to(root / name))
            found[f"{name}/{key}"] = written(path)
    return found


def written(path: Path) -> bytes:
    """A file's length, and its pages that are not zero: index files are large and sparse."""
    size, parts, place = path.stat().st_size, [], 0
    with path.open("rb") as file:
        while place < size:
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA) & ~4095
            except OSError:  # nothing but holes
                break
            page = os.pread(file.fileno(), 4096, place)
            if any(page):
                parts.append(b"%d:" % place + page)
            place += 4096
    return b"%d;" % size + b"".join(parts)


def expected(root: Path, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    """What one process builds of a copy."""
    copy = root.with_name(f"{root.name}-here")
    shutil.copytree(root, copy)
    directory = StoreDirectory(copy, options)
    names = structures_to_build(directory, None, STRUCTURES)
    list(rebuild_here(directory, names, clock=SystemClock(),
                      quarantine=Quarantine(directory.vfs, str(copy))))  # fmt: skip
    found = files_of(copy)
    shutil.rmtree(copy)
    return found


def run(root: Path, *structures: str, options: Any = None, **given: Any) -> Any:
    given.setdefault("max_split_bytes", SPLIT)
    return rebuild(None, str(root), structures or None, options=options, **given)


def killed_at(patching: pytest.MonkeyPatch, root: Path, owner: Any, step: str) -> None:
    """Rebuild as far as a step, which fails."""

    def killed(*_: Any) -> Any:
        raise RuntimeError("killed")

    with patching.context() as patched:
        patched.setattr(owner, step, killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(root)


@pytest.mark.parametrize("structures", [PLAIN, *((name,) for name in PLAIN)])
def test_what_is_built_is_byte_for_byte_what_dispatch_wrote(
    store: Path, structures: tuple[str, ...]
) -> None:
    before = files_of(store)
    assert len([name for name in before if name.startswith("index/")]) > 3
    result = run(store, *structures)
    assert [row["path"] for row in result.rows] == [str(store / name) for name in structures]
    assert result.records == COUNT + 60
    assert sum(row.get("records", 0) for row in result.done.rows) == COUNT + 60
    assert files_of(store) == before
    kept = {path.name for path in (store / ".tubestore" / "quarantine" / "1").iterdir()}
    assert kept == set(structures)
    assert not (store / ".tubestore" / rebuilding.WORK_DIRECTORY / "rebuild").exists()


def test_missing_structures_are_built(store: Path) -> None:
    before = files_of(store)
    for name in PLAIN:
        shutil.rmtree(store / name)
    size = {"mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue}
    run(store, options={**GEOMETRY, **size})
    assert files_of(store) == before


def test_the_store_opens_without_building_anything_once_more(store: Path) -> None:
    end = StoreDirectory(store).log.max_offset
    run(store)
    with rocketcompat.open(store, "w", CONFIG, background=False) as opened:
        assert opened.problems == []
        assert opened.recovered.verified_from > end - CONFIG.mapped_file_size_commit_log
        assert opened.query_message("topic1", "k-1").messages


@pytest.mark.parametrize("options", [GEOMETRY])
def test_damage_in_the_log_leaves_the_same_units_as_in_one_process(
    store: Path, options: dict[str, Any]
) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(3):
        log = rng.choice(sorted((store / "commitlog").iterdir())[:-1])
        raw = bytearray(log.read_bytes())
        start = rng.choice([0, rng.randrange(len(raw))])
        size = rng.choice([3, 5000, len(raw) - start])
        raw[start : start + size] = rng.randbytes(len(raw[start : start + size]))
        log.write_bytes(raw)
    here = expected(store, options)
    run(store, options=options, max_split_bytes=rng.choice([2000, SPLIT, 1 << 20]))
    assert files_of(store) == here, f"seed {seed}"


def test_a_missing_file_of_the_log_is_passed_over(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[2].unlink()
    here = expected(store)
    run(store)
    assert files_of(store) == here


@pytest.mark.parametrize("scenario", GOLDEN)
def test_golden_stores_get_what_one_process_builds(scenario: str, tmp_path: Path) -> None:
    for version in ROCKET_VERSIONS:
        store = unpack("rocketmq", version, scenario, tmp_path / version).store
        here = expected(store)
        run(store, max_split_bytes=2000)
        assert files_of(store) == here, version


def test_a_rebuild_that_was_killed_does_what_is_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    before = files_of(store)
    for kind in (ScanJob, BuildJob):
        work: Callable[..., Any] = kind.work

        def interrupted(self: Any, number: int, split: Any, work: Any = work) -> Any:
            if number == 3:
                raise RuntimeError("interrupted")
            return work(self, number, split)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "work", interrupted)
            with pytest.raises(RuntimeError, match="interrupted"):
                run(store)
        assert files_of(store) == before
    small_waves.clear()
    done = run(store).done
    assert done.resumed > len(plan_rebuild(str(store), ["index"], max_split_bytes=SPLIT).log.splits)
    assert len(small_waves) == len(done.rows) - done.resumed
    assert files_of(store) == before


def test_a_part_that_a_power_cut_took_away_is_written_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)
    killed_at(monkeypatch, store, BuildJob, "work")
    parts = sorted(
        (store / ".tubestore" / rebuilding.WORK_DIRECTORY / "rebuild" / "parts").iterdir()
    )
    units = (parts[0] / "units.rows").read_bytes()
    (parts[0] / "units.rows").write_bytes(bytes(len(units)))  # a file's length comes back first
    (parts[1] / "items.rows").unlink()
    done = run(store).done
    assert done.resumed == len(parts) - 2
    assert files_of(store) == before


def test_an_index_that_does_not_prove_its_geometry_ends_the_job_unless_it_is_left_alone(
    store: Path,
) -> None:
    before = files_of(store)
    for path in (store / "index").iterdir():
        raw = path.read_bytes()
        path.write_bytes(raw[:40] + bytes(len(raw) - 40))
    kept = files_of(store)
    with pytest.raises(InvalidMessage, match="how many slots"):
        run(store)
    assert files_of(store) == kept
    run(store, "consumequeue")
    assert files_of(store) == kept
    run(store, options=GEOMETRY)
    assert files_of(store) == before


def test_one_that_was_killed_while_it_replaced_begins_anew(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)
    killed_at(monkeypatch, store, rebuilding, "install")
    assert run(store).done.resumed == 0
    assert files_of(store) == before


def test_a_log_that_changed_since_is_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(monkeypatch, store, BuildJob, "work")
    with rocketcompat.open(store, "w", CONFIG, background=False) as opened:
        opened.put_message(Message("topic0", b"one more", keys=["more"]))
    before = files_of(store)
    done = run(store).done
    splits = plan_rebuild(str(store), ["index"], max_split_bytes=SPLIT).log.splits
    assert 0 < done.resumed < len(splits)
    assert files_of(store) == before


def test_a_store_that_is_in_use_and_other_structures_are_refused(store: Path) -> None:
    with rocketcompat.open(store, "w", CONFIG, background=False), pytest.raises(StoreLocked):
        run(store)
    with pytest.raises(InvalidMessage, match="can be built"):
        plan_rebuild(str(store), ["tube"])
    with pytest.raises(InvalidMessage, match="no topic is one of batches"):
        plan_rebuild(str(store), ["batchconsumequeue"])


def test_only_what_was_built_is_recorded_as_synced(store: Path) -> None:
    shutil.rmtree(store / ".tubestore")
    run(store, "index")
    known = ProgressFile(OsVfs(), str(store)).read()
    assert known is not None
    assert set(known[0].followers) == {"index"}


# -- queues of inner batches, extensions ----------------------------------------------------------


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A store whose queues have extensions, in files of 50 units."""
    config = CONFIG.changed(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=1024)
    with rocketcompat.open(tmp_path / "store", "w", config, background=False) as opened:
        for number in range(900):
            tags = f"t{number % 5}" if number % 3 else None
            body, queue = b"x" * (number % 90), number % 2
            opened.put_message(Message(f"topic{number % 3}", body, tags=tags, queue_id=queue))
    return tmp_path / "store"


@pytest.fixture
def batched(tmp_path: Path) -> Path:
    """A store with records that hold many messages, and plain ones beside and between them."""
    config = CONFIG.changed(
        compat="5.3.3", batch_topics=frozenset({"B"}), mapper_file_size_batch_consume_queue=9 * 46
    )
    with rocketcompat.open(tmp_path / "store", "w", config, background=False) as opened:
        for number in range(300):
            items = [BatchItem(b"%d" % n, tags=f"i{n}") for n in range(1 + number % 7)]
            opened.put_inner_batch(
                MessageBatch("B", items, queue_id=number % 3, properties={"KEYS": f"k{number}"})
            )
            opened.put_message(Message("B", b"plain", tags="p"))
            opened.put_message(Message("topic", b"beside", keys=[f"b{number}"]))
    return tmp_path / "store"


@pytest.mark.parametrize("split", [3000, SPLIT])
@pytest.mark.parametrize("kind", ["extended", "batched"])
def test_all_kinds_of_queues_are_byte_for_byte_what_dispatch_wrote(
    kind: str, split: int, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    before = files_of(root)
    directory = "consumequeue_ext" if kind == "extended" else "batchconsumequeue"
    assert len([name for name in before if name.startswith(f"{directory}/")]) > 10
    for name in ("consumequeue", "index", directory):
        shutil.rmtree(root / name)
    options = {**GEOMETRY, "mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue}
    if kind == "extended":
        options |= {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024}
    else:
        options |= {"batchTopics": "B", "mapperFileSizeBatchConsumeQueue": 9 * 46}
    run(root, options=options, max_split_bytes=split)
    assert files_of(root) == before
    assert list(check(root)) == []


@pytest.mark.parametrize("kind", ["extended", "batched"])
def test_damage_among_all_kinds_of_queues_is_passed_over_as_in_one_process(
    kind: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    log = sorted((root / "commitlog").iterdir())[0]
    raw = bytearray(log.read_bytes())
    raw[20_000:26_000] = bytes(6000)
    log.write_bytes(raw)
    here = expected(root, GEOMETRY)
    run(root, options=GEOMETRY, max_split_bytes=3000)
    assert files_of(root) == here


@pytest.mark.parametrize(
    ("scenario", "version"), [("batchcq", "5.3.3"), *(("cq-ext", v) for v in ROCKET_VERSIONS)]
)
def test_golden_queues_of_all_kinds_are_what_one_process_builds(
    scenario: str, version: str, tmp_path: Path
) -> None:
    store = unpack("rocketmq", version, scenario, tmp_path).store
    here = expected(store)
    run(store, max_split_bytes=500)
    assert files_of(store) == here
    directory = "batchconsumequeue/" if scenario == "batchcq" else "consumequeue_ext/"
    assert [name for name in here if name.startswith(directory)]
