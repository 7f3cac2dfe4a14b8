"""Records encoded one by one and as columns."""

from __future__ import annotations

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record.codec import encode_one
from rocketcompat.record.prepare import prepare

OLDER = MessageStoreConfig()

STORED_AT = 0x1A1FCAED555


def record(
    message: Message, place: int = 0, number: int = 0, *, config: MessageStoreConfig = OLDER
) -> bytes:
    return encode_one(prepare(message, config), number, place, STORED_AT)


NEWER = MessageStoreConfig(compat="5.3.3", max_topic_length=255)
