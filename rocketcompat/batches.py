"""The one body of several messages: what a producer sends of a batch (spec §1.11).

A store makes an ordinary record of each item; an *inner batch* stays one record with this body.

Next to read: `message_columns.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rocketcompat.formats import (
    BATCH_ITEM,
    PROPERTIES_SIZE_MAX,
)
from rocketcompat.messages import BatchItem
from rocketcompat.options import MessageStoreConfig
from rocketcompat.prepare import property_text
from tubestore.errors import CorruptRecord, MessageTooLarge
from tubestore.layout import Buffer

_PROPERTIES_LENGTH = struct.Struct(">h")


def encode_items(items: Sequence[BatchItem], config: MessageStoreConfig) -> bytes:
    """Return the body that a producer sends (`MessageDecoder.encodeMessages`)."""
    parts = []
    for item in items:
        text = property_text(item, trailing_separator=config.trailing_property_separator).encode()
        size = BATCH_ITEM.size + len(item.body) + _PROPERTIES_LENGTH.size + len(text)
        try:
            length = _PROPERTIES_LENGTH.pack(len(text))
        except struct.error:
            raise MessageTooLarge(len(text), PROPERTIES_SIZE_MAX, "property string") from None
        head = BATCH_ITEM.pack(total_size=size, magic_code=0, body_crc=0, flag=item.flag,
                               body_length=len(item.body))  # fmt: skip
        parts += [head, bytes(item.body), length, text]
    return b"".join(parts)


def decode_items(body: Buffer) -> list[BatchItem]:
    """Return the items of a body, properties as text; CorruptRecord with the position in it."""
    data, position, items = memoryview(body), 0, []
    while position < len(data):
        if position + BATCH_ITEM.size > len(data):
            raise CorruptRecord("", position, "no room for an item of a batch")
        head = BATCH_ITEM.unpack_from(data, position)
        body_at = position + BATCH_ITEM.size
        text_at = body_at + head.body_length + _PROPERTIES_LENGTH.size
        if head.body_length < 0 or text_at > len(data):
            raise CorruptRecord("", position, f"an item's body of {head.body_length} bytes")
        (size,) = _PROPERTIES_LENGTH.unpack_from(data, text_at - _PROPERTIES_LENGTH.size)
        end = text_at + max(size, 0)
        if end > len(data):
            raise CorruptRecord("", position, f"an item's properties of {size} bytes")
        text = str(data[text_at:end], "utf-8", "replace")
        items.append(BatchItem(bytes(data[body_at : body_at + head.body_length]),
                               properties=text, flag=head.flag))  # fmt: skip
        position = end
    return items
