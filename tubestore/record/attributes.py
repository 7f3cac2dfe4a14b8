"""The text in front of a body: `key=value` items, TubeMQ's own two first.

Source: TubeMQ `Message.java`, `SimpleMessageProducer.encodePayload`. The prefix is an int32
length and the text in UTF-8. The flag's bit 0 is set exactly when there is a prefix: TubeMQ
sets it for a blank attribute too, without a prefix, and its readers then take four bytes
of the body for a length.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from tubestore.errors import InvalidMessage
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE

_LENGTH = struct.Struct(">i")
LENGTH_SIZE = _LENGTH.size
_FORBIDDEN = (",", "=", ATTRIBUTE_TYPE, ATTRIBUTE_TIME)


def encode_prefix(
    filter_item: str | None, received_time: int, attributes: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes in front of the body; b"" without attributes.

    >>> encode_prefix("tid1", 1704067200000, {"k": "v"})[4:].decode()
    '$msgType$=tid1,$msgTime$=202401010000,k=v'
    """
    items = []
    if not isinstance(filter_item, str | None):
        raise InvalidMessage(f"filter item {filter_item!r}: not text")
    if not isinstance(attributes, Mapping | None):
        raise InvalidMessage(f"attributes are a mapping, not {type(attributes).__name__}")
    if filter_item and filter_item.strip():
        if any(mark in filter_item for mark in _FORBIDDEN):
            raise InvalidMessage(f"filter item {filter_item!r}: no ',' and no '='")
        minute = minute_text(received_time // 60_000)
        items.append(f"{ATTRIBUTE_TYPE}={filter_item.strip()},{ATTRIBUTE_TIME}={minute}")
    for key, value in (attributes or {}).items():
        for text in (key, value):
            if not isinstance(text, str) or not text.strip():
                raise InvalidMessage(f"attribute {key!r}={value!r}: not text, or blank")
            if any(mark in text for mark in _FORBIDDEN):
                raise InvalidMessage(f"attribute {key!r}={value!r}: ',', '=' or a system name")
        items.append(f"{key}={value}")
    if not items:
        return b""
    try:
        encoded = ",".join(items).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"a filter item or an attribute is not a text: {error}") from error
    return _LENGTH.pack(len(encoded)) + encoded


@lru_cache(maxsize=64)
def minute_text(minutes: int) -> str:
    """Return TubeMQ's time of a message, yyyyMMddHHmm (we write UTC)."""
    try:
        moment = datetime.fromtimestamp(minutes * 60, UTC)
        return f"{moment.year:04d}{moment:%m%d%H%M}"
    except (ValueError, OverflowError, OSError):
        return "197001010000"


def split_payload(payload: bytes) -> tuple[bytes, bytes] | None:
    """Return (attribute text, body) of a payload with attributes, None if the length is impossible.

    Negative lengths mean "no attributes" here as in TubeMQ's readers.
    """
    if len(payload) < LENGTH_SIZE:
        return None
    (size,) = _LENGTH.unpack_from(payload)
    if size > len(payload) - LENGTH_SIZE:
        return None
    end = LENGTH_SIZE + max(size, 0)
    return payload[LENGTH_SIZE:end], payload[end:]


def parse_text(text: bytes) -> dict[str, str]:
    """Return the items of an attribute text; one without `=` has the value "".

    >>> parse_text(b"$msgType$=tid1,k=v")
    {'$msgType$': 'tid1', 'k': 'v'}
    """
    items = {}
    for item in text.decode(errors="replace").split(","):
        if item:
            key, _, value = item.partition("=")
            items[key] = value
    return items
