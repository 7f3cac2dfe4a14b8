"""Statistics of a RocketMQ store for Prometheus, of an open one and of one as it lies."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig, metrics
from rocketcompat.options import LAYOUTS
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tests.support.rocket.inside import dispatcher_of, log_of
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=200,
    max_hash_slot_num=5, max_index_num=50, layouts=LAYOUTS,
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with rocketcompat.open(tmp_path / "s", "w", CONFIG, background=False) as store:
        for number in range(5):
            store.put_message(Message('a "b"', b"x", queue_id=number % 2, keys=f"k{number}"))
    return tmp_path / "s"


def test_every_number_of_the_statistics_is_a_metric(root: Path) -> None:
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        store.put_message(Message("T", b"x"))
        store.get_message('a "b"', 0, 0)
        found, text = store.stats(), metrics.text(store)
    for section, named in metrics.METRICS.items():
        assert {metric.name for metric in named} == set(found[section]), section
    lines = text.splitlines()
    assert "rocketcompat_put_messages_total 1.0" in lines
    assert "rocketcompat_get_messages_total 3.0" in lines
    assert f"rocketcompat_log_max_offset {float(found['log']['max_offset'])}" in lines
    assert 'rocketcompat_deleted_files_total{structure="commit_log"} 0.0' in lines
    assert "# TYPE rocketcompat_log_dispatch_behind_bytes gauge" in lines


def test_what_stopped_or_was_refused_is_a_metric(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    store = rocketcompat.open("/s", "w", CONFIG, vfs=vfs, clock=clock, background=False)

    def lines() -> list[str]:
        found, text = store.stats(), metrics.text(store)
        for label, named in metrics.STATES.items():
            for state in found[f"{label}s"].values():
                assert {metric.name for metric in named} == set(state)
        return text.splitlines()

    store.put_message(Message("T", keys="k"))
    before = lines()
    for name in ("consume_queue", "index"):
        assert f'rocketcompat_structure_stopped{{structure="{name}"}} 0.0' in before
    for name in ("log_failed", "log_full", "log_refusing", "dispatch_full", "dispatch_stopped"):
        assert f"rocketcompat_{name} 0.0" in before
    assert 'rocketcompat_service_running{service="FlushService"} 0.0' in before
    assert 'rocketcompat_service_stopped{service="ReputMessageService"} 0.0' in before
    vfs.fail("pwrite", path="/s/index", error=errno.EIO, forever=True)
    dispatcher_of(store).dispatch_pending()
    vfs.heal()
    size = store.max_physical_offset
    stopped = lines()
    assert 'rocketcompat_structure_stopped{structure="index"} 1.0' in stopped
    assert f'rocketcompat_structure_behind_bytes{{structure="index"}} {float(size)}' in stopped
    assert 'rocketcompat_structure_behind_bytes{structure="consume_queue"} 0.0' in stopped
    vfs.fail("pwrite", path="/s/commitlog", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        store.put_columns({"topic": ["T"] * 3})
    assert {"rocketcompat_log_full 1.0", "rocketcompat_log_refused_messages_total 3.0"} <= {
        *lines()
    }
    log_of(store).refusals.too_full = DiskFull("/s", "too full", errno.ENOSPC)
    assert "rocketcompat_log_refusing 1.0" in lines()
    log_of(store).refusals.too_full = None
    vfs.fail("sync", path="/s/commitlog")
    with pytest.raises(StoreFailed):
        store.flush()
    assert "rocketcompat_log_failed 1.0" in lines()
    with pytest.raises(StoreFailed):
        store.close()


def test_a_collector_goes_with_a_registry(root: Path) -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    with rocketcompat.open(root, "r", CONFIG) as store:
        registry.register(metrics.Collector(store))
        assert registry.get_sample_value("rocketcompat_queues_count") == 2


def test_info_prints_what_the_files_tell(root: Path, command: Command) -> None:
    options = ("-o", "maxHashSlotNum=5", "-o", "maxIndexNum=50")
    lines = command("info", root, *options, "--prometheus").out.splitlines()
    assert 'rocketcompat_queue_max_offset{queue_id="0",topic="a \\"b\\""} 3.0' in lines
    assert 'rocketcompat_queue_messages{queue_id="1",topic="a \\"b\\""} 2.0' in lines
    assert 'rocketcompat_structure_files{structure="commitlog"} 1.0' in lines
    assert "rocketcompat_abort 0.0" in lines
    assert "rocketcompat_running 0.0" in lines
    assert (
        command("info", root, "--prometheus", "--topic", "T", "--queue", 0, "--offset", 0).code == 2
    )


def test_without_the_package_one_line_reports_what_to_install(
    root: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    done = command("info", root, "--prometheus")
    assert (done.code, done.err.count("\n"), "tubestore[metrics]" in done.err) == (2, 1, True)
