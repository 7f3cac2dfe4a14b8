"""What makes a state file valid: opening, check and repair agree."""

from __future__ import annotations

import json
from random import Random

import pytest
import xxhash

from tests.proof.explorer.explore import seed_from_environment
from tests.support.engine.damaged.half_published import found
from tests.support.engine.registers import OWN, REGISTER, filled, registered
from tests.support.publishing import CLOCK, ROOT, open_store
from tubestore.errors import NotAStore
from tubestore.offline.check import Reason, check
from tubestore.offline.repair import repair
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import Bounds, parse_shards, shards_line
from tubestore.testing import MemoryVfs

STRANGE_VALUES = (
    0, -1, True, 1.5, 10_001, 1 << 63, 10**30, "9", "xxh4", "", None, [], {}, [[]], {"a": 1},
)  # fmt: skip

STRANGE_FILES = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{",
    "nested deeply": b"[" * 100_000,
    "a nested version": b'{"version":' + b"[" * 100_000,
    "a number of many digits": b'{"version": ' + b"9" * 5000 + b"}",
    "a list": b"[]",
    "null": b"null",
    "no number": b"NaN",
    "a version that is true": b'{"version": true}',
}


def test_a_damaged_line_costs_evidence_and_is_reported(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    line = memory_vfs.read_file(REGISTER)
    memory_vfs.replace_file(REGISTER, line.replace(b"280", b"281") + line + b"torn")
    (finding,) = [f for f in check("/store", vfs=memory_vfs) if f.path == REGISTER]
    assert (finding.reason, finding.position) == ("stale_cache", 0)
    (done,) = repair("/store", vfs=memory_vfs, apply=True)
    assert (done.path, done.action) == (REGISTER, "reset_state")
    assert list(check("/store", vfs=memory_vfs)) == []
    assert registered(memory_vfs)["t-0"].index_end == 280


@pytest.mark.parametrize("tail", [b"torn", b"damaged line\n"])
def test_a_line_behind_a_torn_one_counts(memory_vfs: MemoryVfs, tail: bytes) -> None:
    filled(memory_vfs)
    memory_vfs.replace_file(REGISTER, memory_vfs.read_file(REGISTER) + tail)
    filled(memory_vfs)
    assert registered(memory_vfs)["t-0"].index_end == 20 * ENTRY_SIZE


@pytest.mark.parametrize(
    "content", [b"[]", b'{"t-0": [0, 0, 1]}', b'{"t-0": "x"}', b'{"t-0": [0, 0, 1, "1", 0]}']
)
def test_a_line_of_another_content_does_not_count(memory_vfs: MemoryVfs, content: bytes) -> None:
    line = b"%s %s\n" % (xxhash.xxh3_64_hexdigest(content).encode(), content)
    memory_vfs.make_directories(OWN)
    memory_vfs.replace_file(REGISTER, line)
    assert registered(memory_vfs) == {}
    filled(memory_vfs)
    assert list(registered(memory_vfs)) == ["t-0"]


def test_the_last_line_of_a_shard_counts() -> None:
    has, gone = shards_line({"t-0": Bounds(0, 0, 1, 1)}), shards_line({"t-0": None})
    assert parse_shards(has + gone) == ({}, None)
    assert parse_shards(gone + has) == ({"t-0": [0, 0, 1, 1, 0]}, None)


def with_topics() -> MemoryVfs:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2, max_age="7d", max_bytes=1 << 40)
        store.create_topic("b-c")
        store["a"].append(b"body", partition=0)
    return vfs


def copy_of(vfs: MemoryVfs) -> MemoryVfs:
    copy = MemoryVfs(CLOCK)
    for path, content in vfs.tree().items():
        copy.make_directories(path.rpartition("/")[0])
        copy.open(path, create=True).pwrite(content, 0)
    return copy


def is_refused(vfs: MemoryVfs) -> bool:
    """Whether opening, to read and to write, is refused, or says that something is wrong."""
    answers = set()
    for mode in ("r", "w"):
        try:
            with open_store(copy_of(vfs), mode) as store:
                answers.add(bool(store.problems))
        except NotAStore:
            answers.add(True)
    (answer,) = answers
    return answer


def assert_check_agrees(vfs: MemoryVfs, path: str, content: bytes) -> bool:
    vfs.replace_file(path, content)
    findings = [f for f in found(vfs) if f.reason is Reason.BAD_STATE]
    refused = is_refused(vfs)
    assert bool(findings) == refused, f"{path} {content[:200]!r}: {findings}, refused {refused}"
    assert {f.path for f in findings} <= {path}
    return refused


@pytest.mark.parametrize("content", STRANGE_FILES.values(), ids=STRANGE_FILES)
@pytest.mark.parametrize("name", ["store.json", "topics.json", "published.json"])
def test_a_state_file_that_makes_no_sense_is_refused_and_found(name: str, content: bytes) -> None:
    assert assert_check_agrees(with_topics(), f"{ROOT}/.tubestore/{name}", content)


@pytest.mark.parametrize("name", ["a/../b", "..", "", "a b", "x" * 200])
def test_settings_of_a_topic_whose_name_no_directory_can_carry_are_refused(name: str) -> None:
    content = json.dumps({"version": 1, "topics": {name: {}}}).encode()
    assert assert_check_agrees(with_topics(), f"{ROOT}/.tubestore/topics.json", content)


def mutated(random: Random, content: bytes) -> bytes:
    """Return a state file with something in it changed: a value, a name, or some bytes."""
    if random.random() < 0.3:
        raw = bytearray(content)
        for _ in range(random.choice((1, 2, 5))):
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        return bytes(raw)
    state = json.loads(content)
    inside = state
    while isinstance(inside, dict) and inside:
        name = random.choice(sorted(inside))
        if not isinstance(inside[name], dict) or random.random() < 0.2:
            break
        inside = inside[name]
    action = random.random()
    if isinstance(inside, dict) and inside and action < 0.6:
        inside[name] = random.choice(STRANGE_VALUES)
    elif isinstance(inside, dict) and inside and action < 0.8:
        del inside[name]
    elif isinstance(inside, dict):
        inside[random.choice(("x", "features", "deleted", "id"))] = random.choice(STRANGE_VALUES)
    return json.dumps(state).encode()


@pytest.mark.parametrize("name", ["store.json", "topics.json"])
def test_check_finds_a_changed_settings_file_exactly_when_opening_refuses_it(name: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    vfs, path = with_topics(), f"{ROOT}/.tubestore/{name}"
    content, random = vfs.read_file(path), Random(seed)
    answers = {
        assert_check_agrees(copy_of(vfs), path, mutated(random, content)) for _ in range(150)
    }
    assert answers == {True, False}
