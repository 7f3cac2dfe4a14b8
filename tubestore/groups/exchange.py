"""The positions of groups as TubeMQ's broker keeps them: `offsets.meta`.

A partition's position is the same number there and here: bytes of the index, 28 an entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tubestore.errors import InvalidMessage
from tubestore.options import ENTRY_SIZE
from tubestore.values import whole_number

#: Positions by group, topic and partition id.
GroupPositions = dict[str, dict[str, dict[int, int]]]


def offsets_meta(groups: Mapping[str, Mapping[str, Mapping[int, int]]], now_ms: int) -> str:
    """Return the text of `offsets.meta` with some groups' positions.

    >>> text = offsets_meta({"g": {"t": {10001: 280}}}, 7)
    >>> parse_offsets_meta(text)
    {'g': {'t': {10001: 280}}}
    """
    content = {
        "lstStoreTime": now_ms,
        "brokerId": 1,
        "groupOffsetStgInfo": {
            group: {
                "lstCommitTime": now_ms,
                "partOffsetInfo": {
                    f"{topic}-{number}": {
                        "topic": topic,
                        "partId": number,
                        "lstRstTerm": 0,
                        "lstOffset": position,
                        "msgId": 0,
                        "lstUpdTime": now_ms,
                        "createOffset": position,
                        "createTime": now_ms,
                    }
                    for topic, positions in sorted(topics.items())
                    for number, position in sorted(positions.items())
                },
            }
            for group, topics in sorted(groups.items())
        },
    }
    return json.dumps(content, separators=(",", ":"))


def parse_offsets_meta(text: str) -> GroupPositions:
    """Return the positions in the text of an `offsets.meta`; InvalidMessage if it is none.

    As in a broker, a position is rounded down to a whole entry.
    """
    try:
        found: GroupPositions = {}
        for group, stored in json.loads(text)["groupOffsetStgInfo"].items():
            topics = found.setdefault(group, {})
            for row in stored["partOffsetInfo"].values():
                topic, number, position = row["topic"], row["partId"], row["lstOffset"]
                if not isinstance(topic, str):
                    raise TypeError(f"topic {topic!r}")
                offset = _number(position)
                topics.setdefault(topic, {})[_number(number)] = offset - offset % ENTRY_SIZE
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidMessage(f"not an offsets.meta of TubeMQ's: {error!r}") from error


def _number(value: Any) -> int:
    found = whole_number(value)
    if found is None or not 0 <= found < 1 << 63:
        raise ValueError(f"{value!r} is not a number from 0 on")
    return found
