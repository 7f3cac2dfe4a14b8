"""Messages that a group could not consume: tried again later, and given up at last (spec §14).

A consumer sends such a message back; it is delayed by a level that grows with every try, and
delivered into the group's retry topic, queue 0. After the last try it goes to the group's
dead-letter topic. What is counted is the group's tries: the original stays as it is.
"""

from __future__ import annotations

from rocketcompat.formats import encode_properties
from rocketcompat.messages import Message, MessageRecord
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    dead_letter_topic,
    retry_topic,
)

#: Tries before a message is given up, unless the group says otherwise.
RETRY_TIMES_MAX = 16
#: The first try is after level 3, 10 s.
FIRST_LEVEL = 3


def sent_back(
    record: MessageRecord, group: str, config: MessageStoreConfig,
    *, delay_level: int = 0, times_max: int = RETRY_TIMES_MAX,
) -> Message:  # fmt: skip
    """Return the message to put when a group could not consume a record.

    `delay_level` 0 leaves the choice to the store; below 0 the message is given up at once.
    """
    pairs = record.properties
    for name in (PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID):
        pairs.pop(name, None)
    pairs.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    pairs.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, record.msg_id)
    pairs[PROPERTY_WAIT] = "false"
    given_up = delay_level < 0 or record.reconsume_times >= times_max
    level = 0 if given_up else delay_level or FIRST_LEVEL + record.reconsume_times
    return Message(
        dead_letter_topic(group) if given_up else retry_topic(group),
        record.body,
        properties=encode_properties(pairs, trailing_separator=config.trailing_property_separator),
        flag=record.flag, sys_flag=record.sys_flag, born_timestamp=record.born_timestamp,
        born_host=record.born_host, store_host=record.store_host,
        reconsume_times=record.reconsume_times + 1, delay_level=level,
    )  # fmt: skip
