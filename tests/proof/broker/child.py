"""A process with a broker, a producer and a consumer, for `test_kill.py`.

It prints "sent N" when a put has returned, and "got N" when its listener has a message; at the end
of its input it consumes what is left and prints "end".
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.broker.broker import Broker, BrokerOptions
from rocketcompat.broker.push import ConsumeContext, ConsumeStatus, PushConsumer, PushOptions
from rocketcompat.messages import MessageRecord

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=1000,
    max_index_num=4000,
    layouts=frozenset({"consume_queue", "index"}),
)
QUEUES = 4


def main(root: str, first: int) -> None:
    options = BrokerOptions(flush_consumer_offset_interval=20)
    lock, left = threading.Lock(), threading.Semaphore(0)

    def report(text: str) -> None:
        with lock:
            print(text, flush=True)

    def listen(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        for message in messages:
            report(f"got {message.body.decode()}")
        left.release()
        return ConsumeStatus.CONSUME_SUCCESS

    with rocketcompat.open(root, "w", CONFIG) as store, Broker(store, options=options) as broker:
        broker.topics.create("orders", QUEUES, exist_ok=True)
        given = PushOptions(consume_from_where="CONSUME_FROM_FIRST_OFFSET", consume_thread_max=2)
        with PushConsumer(broker, "g", {"orders": "*"}, listen, options=given):
            number = first
            ends: dict[int, int] = {}
            for line in sys.stdin:
                for _ in range(int(line)):
                    sent = broker.send(Message("orders", b"%d" % number))
                    ends[sent.queue.queue_id] = sent.put.queue_offset + 1
                    report(f"sent {number}")
                    number += 1
            # Not the ends of the queues in the store: the dispatcher may not have the last puts.
            while any(broker.offsets.find("g", "orders", queue) != ends[queue] for queue in ends):
                left.acquire(timeout=1)
    report("end")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
