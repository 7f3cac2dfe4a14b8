"""Names that RocketMQ gives a meaning: topics of its own, and the properties that go with them."""

from __future__ import annotations

from collections.abc import Mapping

from rocketcompat.formats import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_UNIQ_KEY

#: Messages that wait for their delivery, queue id = level - 1.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PROPERTY_DELAY = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"

#: Messages that a group could not consume: to be tried again, and given up.
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"

#: Queues that get units of other topics' messages (multi-dispatch).
LMQ_PREFIX = "%LMQ%"
PROPERTY_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_MULTI_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
MULTI_DISPATCH_SEPARATOR = ","

#: An inner batch: how many messages it has, and the queue offset of the first.
PROPERTY_INNER_COUNT = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"

#: "false": the put does not wait for the sync of this message.
PROPERTY_WAIT = "WAIT"


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """Return the keys under which a message is indexed: UNIQ_KEY, then the parts of KEYS.

    `RecordColumns.key_places` has the same keys of many records.

    >>> keys_of({"KEYS": "o-1  o-2", "UNIQ_KEY": "7F"})
    ['7F', 'o-1', 'o-2']
    """
    unique = properties.get(PROPERTY_UNIQ_KEY, "")
    return [key for key in (unique, *properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR)) if key]


def retry_topic(group: str) -> str:
    """Return the topic from which a group consumes again what failed.

    >>> retry_topic("payments")
    '%RETRY%payments'
    """
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group has given up.

    >>> dead_letter_topic("payments")
    '%DLQ%payments'
    """
    return DEAD_LETTER_PREFIX + group
