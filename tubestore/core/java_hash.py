"""Java's `String.hashCode`, which both formats store.

A file of its own because it needs no numpy: tables of the formats and `--help` import it.
"""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, a signed 32-bit int over UTF-16 code units.

    >>> java_hash("tid1"), java_hash("streamId1"), java_hash("Aa") == java_hash("BB")
    (3559810, -315646250, True)
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
