"""Messages that are delivered later: put aside, taken back, sent back by a group.

A delayed message is stored in the queue of its delay level, with its own topic and queue in two
properties. A message that a group could not consume is put again: it is delayed by a level that
grows with every try, and delivered into the group's retry topic, queue 0. After the last try it
goes to the group's dead-letter topic. The tries of the group are counted; the original record
stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from rocketcompat.formats import (
    PROPERTY_SEPARATOR,
    SYS_FLAG_TRANSACTION_MASK,
    encode_properties,
    parse_properties,
)
from rocketcompat.messages import Message, MessageRecord, has_queue_unit
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.prepare import property_text
from rocketcompat.record.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from tubestore.errors import InvalidMessage

#: Tries before a message is given up, unless the group has a number of its own.
RETRY_TIMES_MAX = 16
#: The first try is after level 3, 10 s.
FIRST_LEVEL = 3


def delay_level_of(message: Message, pairs: dict[str, str], config: MessageStoreConfig) -> int:
    """Return the delay level of a message with these properties, 0 if it is not delayed."""
    given = str(message.delay_level or pairs.get(PROPERTY_DELAY, "0"))
    try:
        level = int(given)
    except ValueError:
        # RocketMQ would take the record for damaged.
        raise InvalidMessage(f"DELAY: {given!r} is not a level") from None
    return min(max(level, 0), len(config.delay_levels_ms))


def delayed(message: Message, config: MessageStoreConfig) -> Message:
    """Return a message as it is put aside until it is due; itself if it is not delayed.

    A `delay_level` below 0 is that of a message which was put aside, or delivered, before.

    4.9.8's store does so with every message that has a DELAY; that of 5.3.3 leaves it to the
    broker, so with `compat="5.3.3"` only a message's `delay_level` counts.
    """
    text = property_text(message, trailing_separator=config.trailing_property_separator)
    pairs = parse_properties(text)
    if message.delay_level < 0:
        if message.topic == SCHEDULE_TOPIC:
            delay_level_of(replace(message, delay_level=0), pairs, config)  # it is a number
        return message
    level = delay_level_of(message, pairs, config)
    unasked = config.compat == "5.3.3" and not message.delay_level
    if level == 0 or unasked or not has_queue_unit(message.sys_flag):
        return message
    pairs[PROPERTY_DELAY] = str(level)
    pairs[PROPERTY_REAL_TOPIC] = message.topic
    pairs[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return replace(
        message, topic=SCHEDULE_TOPIC, queue_id=level - 1, tags=None, keys=None, delay_level=0,
        properties=encode_properties(
            pairs, trailing_separator=config.trailing_property_separator
        ),
    )  # fmt: skip


def delivered(record: MessageRecord, *, trailing_separator: bool) -> Message:
    """Return the message that was put aside; InvalidMessage if the record has no topic for it.

    Its property string keeps its DELAY: it must not be put aside again.
    """
    pairs = record.properties
    topic, queue_id = pairs.get(PROPERTY_REAL_TOPIC), pairs.get(PROPERTY_REAL_QUEUE_ID, "0")
    if topic is None or not queue_id.isdecimal():
        raise InvalidMessage("a delayed message without its own topic and queue")
    text = record.properties_text
    if trailing_separator and not text.endswith(PROPERTY_SEPARATOR):
        text += PROPERTY_SEPARATOR
    return Message(
        topic, record.body, properties=text, queue_id=int(queue_id), flag=record.flag,
        sys_flag=record.sys_flag & ~SYS_FLAG_TRANSACTION_MASK, born_timestamp=record.born_timestamp,
        born_host=record.born_host, store_host=record.store_host,
        reconsume_times=record.reconsume_times,
    )  # fmt: skip


def sent_back(
    record: MessageRecord, group: str, config: MessageStoreConfig,
    *, delay_level: int = 0, times_max: int = RETRY_TIMES_MAX,
) -> Message:  # fmt: skip
    """Return the message to put when a group could not consume a record.

    With `delay_level` 0 the store chooses the level; below 0 the message is given up at once.
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
