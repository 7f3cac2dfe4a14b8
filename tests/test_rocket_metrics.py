"""Statistics of a RocketMQ store for Prometheus, of an open one and of one as it lies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig, metrics
from tests.support.command import Command
from tests.support.rocket_cli import command_fixture  # noqa: F401

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=200,
    max_hash_slot_num=5, max_index_num=50,
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


def test_without_the_package_one_line_says_what_to_install(
    root: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    done = command("info", root, "--prometheus")
    assert (done.code, done.err.count("\n"), "tubestore[metrics]" in done.err) == (2, 1, True)
