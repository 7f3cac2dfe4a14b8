"""The fields of a message that is put, by type: names the one that has made a put fail.

A put does not examine each field: that would cost a tenth of its time. A wrong value makes the
encoding fail, and only then the fields are examined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketcompat.formats import MESSAGE_HEAD
from rocketcompat.messages import BatchItem
from tubestore.errors import InvalidMessage
from tubestore.values import whole_number

_TEXTS = ("topic", "born_host")
_TEXTS_OR_NONE = ("tags", "store_host")
_NUMBERS = (
    "queue_id", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "delay_level",
)  # fmt: skip
_FIELDS = (
    *_TEXTS, *_TEXTS_OR_NONE, "keys", "properties", *_NUMBERS, "born_timestamp", "items",
)  # fmt: skip


def check_fields(given: Any) -> None:
    """Raise InvalidMessage for the first field of a message, batch or item of a wrong type."""
    for name in _FIELDS:
        if hasattr(given, name):
            reason = _fault(name, getattr(given, name))
            if reason:
                raise InvalidMessage(f"{name}: {reason}")


def fault_of(given: Any, error: Exception) -> InvalidMessage:
    """Return the error for a message or a batch that could not be encoded.

    It names the first field of a wrong type; `error` is the reason if there is none.
    """
    try:
        check_fields(given)
        for item in getattr(given, "items", ()):
            if not isinstance(item, BatchItem):
                text = f"items: a BatchItem is needed, not {type(item).__name__}"
                raise InvalidMessage(text)
            check_fields(item)
    except InvalidMessage as found:
        return found
    return InvalidMessage(str(error))


def _fault(name: str, value: Any) -> str | None:
    """Return what is wrong with a field's value, None if its type is right."""
    shown = repr(value)[:60]
    if name in _TEXTS or name in _TEXTS_OR_NONE:
        if value is None and name in _TEXTS_OR_NONE:
            return None
        return None if isinstance(value, str) else f"{shown} is not a text"
    if name in _NUMBERS:
        number = whole_number(value)
        return f"{shown} is not a whole number" if number is None else _unfit(name, number)
    if name == "born_timestamp":
        if value is None:
            return None
        number = whole_number(value)
        return f"{shown} is not a time in ms" if number is None else _unfit(name, number)
    if name == "keys":
        return None if value is None else _fault_of_keys(value, shown)
    if name == "properties":
        known = isinstance(value, str | Mapping | None)
        return None if known else f"{shown} is neither a mapping nor a text"
    return None if isinstance(value, Sequence) else f"{shown} is not a list of BatchItems"


def _unfit(name: str, number: int) -> str | None:
    """Return what is wrong with a number that is too large for its field of a record."""
    if name == "delay_level":  # no record has it
        return None
    bits = 8 * MESSAGE_HEAD.dtype[name].itemsize
    return None if -1 <= number >> bits - 1 <= 0 else f"{number} does not fit {bits} bits"


def _fault_of_keys(keys: Any, shown: str) -> str | None:
    if isinstance(keys, str):
        return None
    if not isinstance(keys, Sequence) or isinstance(keys, bytes):
        return f"{shown} is neither a text nor a list of texts"
    wrong = next((key for key in keys if not isinstance(key, str)), None)
    return None if wrong is None and None not in keys else f"{wrong!r} is not a text"
