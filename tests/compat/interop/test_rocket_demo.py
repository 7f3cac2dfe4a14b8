"""The real RocketMQ and TubeMQ stores open what `rocketcompat demo` wrote, whole and killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

import rocketcompat
from bench.real.drivers import (
    ROCKETMQ_VERSIONS,
    Row,
    TubeDriver,
    bytes_of,
    of_kind,
)
from rocketcompat.check.whole import check
from rocketcompat.cli.demo import run as demo
from tests.compat.interop.conftest import rocket_of as rocket
from tests.compat.interop.conftest import tube as tube
from tests.compat.interop.rocket_book import (
    Book,
    check_shards,
    read_all,
    row_of_answer,
    rows_of,
)
from tubestore.cli.kit.demo import TOPIC, kill_in_the_middle, load_lines

pytestmark = [pytest.mark.gate, pytest.mark.interop]


@pytest.fixture(scope="class", name="demo_stores")
def demo_stores_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    assert demo.run(out=out, partitions=50, lines=5_000, console=Console(quiet=True))
    return out


@pytest.mark.slow
class TestDemo:
    """Files of full size, as a broker's without any settings."""

    def test_the_real_stores_and_ours_go_on_with_what_the_demo_wrote(
        self, demo_stores: Path
    ) -> None:
        root = demo_stores / "stack"
        lines, _ = load_lines([], 5_000)
        wanted = {
            f"{name}:{number}": body
            for name, number, body in zip(
                *(lines[column].to_pylist() for column in ("key", "number", "body")), strict=True
            )
        }
        asked = list(wanted)[::250]
        appended: list[Row] = []
        for version in ROCKETMQ_VERSIONS:
            rows = rocket(version).visit(root, TOPIC, 50, 40, keys=[(TOPIC, k) for k in asked])
            messages = [row_of_answer(row) for row in of_kind(rows, "message")]
            found = Book(messages)
            for place, queue in found.queues.items():
                assert [row["queueOffset"] for row in queue] == list(range(len(queue))), place
            bodies = {
                row["properties"]["KEYS"]: bytes_of(row, "body")
                for row in of_kind(rows, "message")
                if row["bornHost"] != "10.1.2.3:45678"
            }
            assert bodies == wanted
            assert len(messages) == len(wanted) + len(appended)
            for answer in of_kind(rows, "query"):
                (one,) = answer["messages"]
                assert bytes_of(one, "body") == wanted[answer["key"]]
            appended += of_kind(rows, "append")
            (closed,) = of_kind(rows, "closed")
            assert not closed["abortFileLeft"]
        with rocketcompat.open(root, mode="w") as store:
            assert len(rows_of(read_all(store))) == len(wanted) + len(appended)
            book = Book(rows_of(read_all(store)))
        check_shards(root, book)
        assert list(check(root)) == []

    @pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
    def test_the_real_store_opens_the_demos_killed_store(
        self, version: str, demo_stores: Path
    ) -> None:
        rows = rocket(version).dump(demo_stores / "stack-killed")
        assert_demo_messages(rows, 5_000)

    @pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
    def test_the_real_store_recovers_a_killed_demo_child(
        self, version: str, tmp_path: Path
    ) -> None:
        acknowledged = kill_in_the_middle("rocketcompat.cli.demo.child", tmp_path, 2_000)
        rows = rocket(version).dump(tmp_path)
        assert_demo_messages(rows, len(acknowledged))

    def test_the_real_tube_store_reads_the_shards_of_the_demo(
        self, demo_stores: Path, tube: TubeDriver
    ) -> None:
        lines, _ = load_lines([], 5_000)
        rows = tube.read(demo_stores / "stack" / "tube")
        assert not of_kind(rows, "unreturned")
        bodies = [
            bytes_of(row["client"], "data")
            for row in sorted(of_kind(rows, "message"), key=lambda row: row["indexOffset"])
        ]
        assert bodies[:5_000] == lines["body"].to_pylist()
        assert all(row["crcOk"] for row in of_kind(rows, "message"))
        assert {row["end"] for row in of_kind(rows, "partition")} == {"404"}

        rows = tube.read(demo_stores / "stack-killed" / "tube")
        assert not of_kind(rows, "unreturned")
        bodies = [bytes_of(row["client"], "data") for row in of_kind(rows, "message")]
        assert sorted(bodies) == sorted(f"message {n}".encode() for n in range(len(bodies)))
        assert len(bodies) >= 5_000


def assert_demo_messages(rows: list[Row], least: int) -> None:
    """The messages 0, 1, … of the demo's child, each once and in its queue."""
    assert not of_kind(rows, "gap")
    assert not of_kind(rows, "stuck")
    messages = [
        row_of_answer(row) | {"text": bytes_of(row, "body")} for row in of_kind(rows, "message")
    ]
    assert len(messages) >= least
    for number, row in enumerate(sorted(messages, key=lambda row: row["physicalOffset"])):
        assert row["text"] == f"message {number}".encode()
        assert (row["queueId"], row["queueOffset"]) == (number % 100, number // 100)
        assert row["properties"] == {"KEYS": f"k{number}", "TAGS": f"t{number % 7}"}
