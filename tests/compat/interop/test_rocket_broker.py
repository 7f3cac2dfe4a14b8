"""The real classes decide: how queues are shared, and the tables of a broker in both directions."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import get_args

import pytest

import rocketcompat
from bench.real.drivers import (
    ROCKETMQ_VERSIONS,
    DriverUnavailable,
    RocketBrokerDriver,
    RocketClientDriver,
    of_kind,
)
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.broker.allocation import (
    MessageQueue,
    allocated,
    average,
    by_configuration,
    by_machine_room,
    circle,
    consistent_hash,
    machine_room_nearby,
    queue_by_hash,
)
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.broker.rebalance import FromWhere, pull_from_where
from rocketcompat.broker.sql92 import evaluated, parse
from rocketcompat.files.broker_config import SubscriptionGroupConfig
from rocketcompat.record.batches import unwrapped
from tests.compat.interop.rocket_messages import config
from tests.rocketcompat.broker.test_process_queue import message
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage

pytestmark = [pytest.mark.gate, pytest.mark.interop]


@pytest.fixture(scope="module", params=ROCKETMQ_VERSIONS)
def client(request: pytest.FixtureRequest) -> RocketClientDriver:
    try:
        return RocketClientDriver(request.param)
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def real_broker() -> RocketBrokerDriver:
    try:
        return RocketBrokerDriver()
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


def share(name: str, client_id: str, queues: list[MessageQueue], clients: list[str]) -> list[str]:
    kind, _, argument = name.partition("/")
    in_order = sorted(queues)
    strategy = {
        "average": lambda: average,
        "circle": lambda: circle,
        "by_configuration": lambda: by_configuration(in_order[: len(in_order) // 2]),
        "by_machine_room": lambda: by_machine_room(argument.split("+")),
        "consistent_hash": lambda: consistent_hash(int(argument)),
        "machine_room_nearby": lambda: machine_room_nearby(
            average, lambda q: q.broker_name.split("@")[0], lambda c: c.split("-")[0]
        ),
    }[kind]()
    got = allocated(strategy, "group", client_id, queues, clients)
    return [f"{q.topic}:{q.broker_name}:{q.queue_id}" for q in got]


NAMES = (
    "average", "circle", "by_configuration", "by_machine_room/r1+r3", "consistent_hash/10",
    "consistent_hash/0", "consistent_hash/3", "machine_room_nearby",
)  # fmt: skip


def test_queues_are_shared_as_the_real_classes_share_them(client: RocketClientDriver) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    cases, wanted = [], []
    for _ in range(400):
        name = chance.choice(NAMES)
        brokers = chance.sample(["r1@b", "r2@b", "r3@b", "r1@b@c", "plain"], chance.randint(1, 3))
        queues = [
            MessageQueue("topic", broker, number)
            for broker in brokers
            for number in range(chance.randint(0, 12))
        ]
        clients = [f"r{chance.randint(1, 4)}-{n}@{n * 7}" for n in range(chance.randint(0, 6))]
        if clients and chance.random() < 0.1:
            clients.append(clients[0])  # one that is in the list twice
        own = chance.choice([*clients, "r1-unknown", ""])
        chance.shuffle(queues)
        texts = [f"{q.topic}:{q.broker_name}:{q.queue_id}" for q in queues]
        cases.append((name, own, ",".join(clients), ",".join(texts)))
        try:
            row = {"kind": "allocated", "queues": share(name, own, queues, clients)}
        except InvalidMessage:
            row = {"kind": "refused"}
        wanted.append(row)
    for case, found, want in zip(cases, client.ask("allocate", cases), wanted, strict=True):
        assert want == found, case


def test_a_key_has_the_queue_that_the_real_selector_chooses(client: RocketClientDriver) -> None:
    keys = ["", "a", "order-7", "polygenelubricants", "Aa", "é", "\U0001f600", "x" * 50]
    cases = [(key, queues) for key in keys for queues in (1, 3, 4, 1024)]
    found = [row["queue"] for row in client.ask("hash", cases)]
    assert found == [queue_by_hash(*case) for case in cases]


def test_an_inner_batch_is_split_as_the_real_client_splits_it(tmp_path: Path) -> None:
    try:
        client = RocketClientDriver("5.3.3")
    except DriverUnavailable as reason:
        pytest.skip(str(reason))
    batches = [
        [BatchItem(b"alone")],
        [BatchItem(b"%d" % n, tags="t", keys=["k1", "k2"], flag=n) for n in range(5)],
        [BatchItem(b"x", properties={"a": "b", "c": ""}), BatchItem("é".encode() * 9)],
    ]
    records = []
    topics = config(batch_topics=frozenset({"t"}))
    with rocketcompat.open(tmp_path, "w", topics) as store:
        for items in batches:
            put = store.put_inner_batch(MessageBatch("t", items))
            records.append(store.look_message(put.physical_offset))
    cases = [(r.queue_offset, base64.b64encode(r.body).decode()) for r in records]
    for record, row in zip(records, client.ask("unwrap", cases), strict=True):
        ours = [
            [m.queue_offset, m.flag, base64.b64encode(m.body).decode(), m.properties]
            for m in unwrapped(record)
        ]
        for *_, properties in row["messages"]:
            # Of the client's objects, and in no record.
            assert properties.pop("WAIT") == "true"
        assert row["messages"] == ours


OPERATIONS = (
    *["put"] * 3, *["remove"] * 2, *["take"] * 2, "commit", "rollback", "again", "clear",
)  # fmt: skip


def test_a_process_queue_answers_as_the_real_class_does(
    client: RocketClientDriver, clock: ManualClock
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    ours, cases, wanted, begin = ProcessQueue(clock), [], [], 0
    for _ in range(600):
        name = chance.choice(
            [
                "put",
                "put",
                "put",
                "remove",
                "remove",
                "take",
                "take",
                "commit",
                "rollback",
                "again",
                "clear",
            ]
        )
        if name == "clear" and chance.random() < 0.8:
            continue
        some = sorted(chance.sample(range(begin, begin + 12), chance.randint(0, 4)))
        if name == "put":
            begin += chance.randint(0, 3)
        argument = str(chance.randint(1, 4)) if name == "take" else ",".join(map(str, some))
        messages = [message(offset, bytes(offset % 10)) for offset in some]
        answer: object = None
        if name == "take":
            answer = [m.queue_offset for m in ours.take(int(argument))]
        elif name in ("put", "remove", "again"):
            if name == "again" and not set(some) <= {*ours._taken}:
                continue  # the real consumer gives back only what it has taken
            answer = getattr(ours, name)(messages)
        else:
            answer = getattr(ours, name)()
        cases.append((name, argument))
        wanted.append({
            "kind": "queue", "answer": answer, "count": ours.count, "size": ours.size,
            "span": ours.span, "waiting": bool(ours.offsets), "offsets": ours.offsets,
        })  # fmt: skip
    for number, found in enumerate(client.ask("process-queue", cases)):
        assert found == wanted[number], (number, cases[: number + 1])


@pytest.mark.parametrize("policy", get_args(FromWhere))
def test_a_new_queue_begins_where_the_real_class_begins(
    client: RocketClientDriver, policy: FromWhere
) -> None:
    cases = [
        (policy, topic, stored, 9, 4) for topic in ("orders", "%RETRY%g") for stored in (-1, 0, 7)
    ]
    found = [row["offset"] for row in client.ask("from-where", cases)]
    assert found == [
        pull_from_where(policy, topic, None if stored < 0 else stored, lambda: 9, lambda: 4)
        for _, topic, stored, _, _ in cases
    ]


def test_real_managers_read_our_tables_and_we_read_what_they_write(
    real_broker: RocketBrokerDriver, tmp_path: Path
) -> None:
    with rocketcompat.open(tmp_path, "w", config()) as store, Broker(store) as broker:
        broker.topics.create("orders", 4, order=True, attributes={"queue.type": "SimpleCQ"})
        broker.send(Message("made", b"x"))
        broker.groups.update(SubscriptionGroupConfig("mailers", retry_max_times=2))
        broker.commit_offset("mailers", "orders", 3, 41)
        broker.commit_offset("mailers", "orders", 0, 1 << 40)
    rows = real_broker.tables(tmp_path, change=True)
    assert of_kind(rows, "loaded") == [
        {"kind": "loaded", "topics": True, "groups": True, "offsets": True}
    ]
    topics = {row["name"]: row for row in of_kind(rows, "topic")}
    orders = {"read": 4, "write": 4, "perm": 6, "order": True}
    assert orders.items() <= topics["orders"].items()
    assert topics["orders"]["attributes"] == {"queue.type": "SimpleCQ"}
    assert topics["made"]["write"] == 4
    groups = {row["name"]: row for row in of_kind(rows, "group")}
    assert groups["mailers"]["retryMaxTimes"] == 2
    offsets = {row["place"]: row["queues"] for row in of_kind(rows, "offsets")}
    assert offsets["orders@mailers"] == {"0": 1 << 40, "3": 41}
    with rocketcompat.open(tmp_path, "w", config()) as store, Broker(store) as broker:
        added = broker.topics.get("added")
        assert (added.read_queue_nums, added.write_queue_nums) == (3, 5)
        assert broker.topics.get("orders").order
        assert broker.groups.get("broker-group").retry_max_times == 3
        assert broker.query_offset("broker-group", "added", 2) == 77
        broker.commit_offset("broker-group", "added", 2, 78)
        broker.topics.create("last", 1)
    rows = real_broker.tables(tmp_path)
    offsets = {row["place"]: row["queues"] for row in of_kind(rows, "offsets")}
    assert offsets["added@broker-group"] == {"2": 78}
    assert "last" in {row["name"] for row in of_kind(rows, "topic")}


class Expressions:
    """Random expressions, most of them valid, and properties for them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def operand(self) -> str:
        kind = self._chance.randrange(12)
        if kind < 5:
            return self._chance.choice(["a", "b", "c", "d_1", "$e"])
        if kind < 7:
            return self._chance.choice(["'4'", "'x'", "'it''s'", "'true'", "''", "'4.0'"])
        if kind < 11:
            return self._chance.choice(
                ["4", "5L", "-4", "4.0", "1e3", ".5", "2147483648", "+ 7", "- - 4", "- 2147483648"]
            )
        return self._chance.choice(["TRUE", "FALSE", "NULL"])

    def number(self) -> str:
        return self._chance.choice(["a", "b", "4", "-4", "4.5", "1e3", "9L", "'x'"])

    def comparison(self) -> str:
        kind = self._chance.randrange(9)
        negative = self._chance.choice(["", "NOT "])
        left = self.operand()
        if kind < 3:
            return f"{left} {self._chance.choice(['=', '<>'])} {self.operand()}"
        if kind < 5:
            sign = self._chance.choice(["<", "<=", ">", ">="])
            return f"{self.number()} {sign} {self.number()}"
        if kind == 5:
            return f"{left} IS {negative}NULL"
        if kind == 6:
            return f"{left} {negative}IN ('4', {self._chance.choice(['chr', 'x'])!r})"
        if kind == 7:
            return f"{left} {negative}BETWEEN {self.number()} AND {self.number()}"
        word = self._chance.choice(["CONTAINS", "STARTSWITH", "EndsWith"])
        return f"{left} {negative}{word} {self._chance.choice(['4', 'x', ''])!r}"

    def expression(self, depth: int = 0) -> str:
        kind = self._chance.randrange(8 if depth < 3 else 3)
        if kind < 3:
            return self.comparison()
        if kind < 6:
            both = self._chance.choice(["AND", "OR", "and"])
            return f"{self.expression(depth + 1)} {both} {self.expression(depth + 1)}"
        if kind == 6:
            return f"NOT ({self.expression(depth + 1)})"
        return f"({self.expression(depth + 1)})"

    def properties(self) -> dict[str, str]:
        values = [
            "4", "4.0", "x", "true", "", " 4", "-4", "1e3", "NaN", "4d", "0x1p2", "99999999999",
            "+4", "4_0", "inf", "Infinity", "٤", "2147483648", "-0.0", "4.", ".",
        ]  # fmt: skip
        return {
            name: self._chance.choice(values)
            for name in ("a", "b", "c", "d_1", "$e")
            if self._chance.random() < 0.7
        }


def test_filters_have_the_values_of_the_real_classes(real_broker: RocketBrokerDriver) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    made = Expressions(random.Random(seed))
    cases = [(made.expression(), made.properties()) for _ in range(1500)]
    rows = real_broker.filter(
        (text, *(f"{name}={value}" for name, value in pairs.items())) for text, pairs in cases
    )
    values = {"true": True, "false": False, "null": None}
    for (text, pairs), row in zip(cases, rows, strict=True):
        try:
            found: object = evaluated(parse(text), pairs)
        except InvalidMessage:
            found = "refused"
        wanted = values[row["value"]] if row["kind"] == "filtered" else row["kind"]
        wanted = None if wanted == "failed" else wanted
        assert found == wanted, (text, pairs, row)
    kinds = {row["kind"] for row in rows}
    assert kinds == {"filtered", "refused", "failed"}
