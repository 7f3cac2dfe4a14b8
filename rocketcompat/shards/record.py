"""A RocketMQ message as a tube record, and back (decisions.md D2).

Fields that both formats have are where TubeMQ puts them: partition = queue id, key code = hash of
the tag, `$msgType$` the tag, `$msgTime$` the store time in UTC, received time = store time, message
id = physical offset, report address = born host, plain properties = attributes. Fields that a tube
record lacks go into one reserved attribute, `$rmq$`, the base64 (URL alphabet) of `RESERVED`. A
property string that is not plain follows inside it, as it was.

A property string is plain when every pair has a name and a value and nothing in it is a
comma, an equals sign, a dollar sign or white space; then `U+0001` becomes `=`, `U+0002`
becomes `,`, and back.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    BODY_CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    hosts_of,
    parse_properties,
    record_size,
)
from rocketcompat.messages import MessageRecord, has_queue_unit
from rocketcompat.record.columns import RecordColumns as LogColumns
from tubestore.core import kernels
from tubestore.core.layout import Field, Layout
from tubestore.errors import InvalidName
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.attributes import encode_prefix, parse_text
from tubestore.record.layouts import FLAG_HAS_ATTRIBUTES, NO_KEY_CODE, PAYLOAD_SIZE_MAX
from tubestore.record.names import check_topic_name
from tubestore.record.records import RecordColumns, binary_sizes

Array = np.ndarray[Any, Any]

#: The payload has 64 KiB for the attributes.
_BODY_SIZE_MAX = PAYLOAD_SIZE_MAX - (1 << 16)

RESERVED_KEY = "$rmq$"


def _reserved(size: int, born_host: int, store_host: int) -> Layout:
    return Layout(
        f"Reserved_{born_host}_{store_host}",
        size,
        (
            Field("version", "u1", "1."),
            Field("bits", "u1", "1: the property string follows; 2: it ends in U+0002; 4: V2."),
            Field("flag", "i4", "The application's flag."),
            Field("sys_flag", "i4", "As in the CommitLog; it determines the length of the hosts."),
            Field("queue_offset", "i8", "Number of the unit in the queue."),
            Field("born_timestamp", "i8", "When the producer made it, ms."),
            Field("reconsume_times", "i4", "How often it was consumed again."),
            Field("prepared_transaction_offset", "i8", "Offset of the half message, or 0."),
            Field("born_host", f"b{born_host}", "The producer's address and port."),
            Field("store_host", f"b{store_host}", "The broker's address and port."),
        ),
    )


#: By `sys_flag`'s host bits; every size is a multiple of 3, so base64 needs no padding.
RESERVED = (_reserved(54, 8, 8), _reserved(66, 20, 8), _reserved(66, 8, 20), _reserved(78, 20, 20))
RESERVED_VERSION = 1
#: Its fields that are fields of the record.
RESERVED_FIELDS = tuple(
    field.name for field in RESERVED[0].fields if field.name not in ("version", "bits")
)
BIT_RAW_PROPERTIES, BIT_TRAILING_SEPARATOR, BIT_V2 = 1, 2, 4

#: The letters of `$rmq$`, by the six bits that each encodes.
ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)
#: Two letters as they are in memory, by twelve bits.
_PAIRS = np.stack([ALPHABET.repeat(64), np.tile(ALPHABET, 64)], axis=-1).view(np.uint16).reshape(-1)
_KEY_BYTES = np.frombuffer(f"{RESERVED_KEY}=".encode(), np.uint8)
#: 1 for a byte that no plain property string has.
_NOT_PLAIN = np.zeros(256, np.uint8)
_NOT_PLAIN[list(b",=$ \t\r\n\x0b\x0c")] = 1
#: The same in texts, where white space has more signs.
_STRANGE = re.compile(r"[,=$\x01\x02\s]")
_TO_ATTRIBUTES = np.arange(256, dtype=np.uint8)
_TO_ATTRIBUTES[ord(NAME_VALUE_SEPARATOR)] = ord("=")
_TO_ATTRIBUTES[ord(PROPERTY_SEPARATOR)] = ord(",")


def fits(log: LogColumns, on_refused: Callable[[InvalidName], None] | None = None) -> Any:
    """Return the mask of the records of the log that get a record in a shard.

    Those are the records with a queue unit, if a tubestore root can hold their queue, body and
    topic. `on_refused` is called with each of their topics that cannot be the name of a directory.
    """
    queue_ids = log.column("queue_id")
    found = np.asarray(has_queue_unit(log.column("sys_flag"))) & (queue_ids >= 0)
    found &= queue_ids < PARTITIONS_PER_STORE * PARTITIONS_PER_STORE
    found &= log.column("body_length") <= _BODY_SIZE_MAX
    for code, name in enumerate(log.topic_names):
        try:
            check_topic_name(name)
        except InvalidName as error:
            found &= log.topic_codes != code
            if on_refused is not None:
                on_refused(error)
    return found


def to_tube(log: LogColumns, rows: Array) -> RecordColumns:
    """Return the tube records of some records of the log, in order.

    Partition ids are the queue ids; offsets are given by the shards.
    """
    columns = {
        name: log.column(name)[rows]
        for name in (
            "queue_id",
            "store_timestamp",
            "physical_offset",
            "sys_flag",
            "magic_code",
            "queue_offset",
        )
    }
    whole = len(rows) == len(log)
    places = pa.array(rows)
    bodies, properties = log.bodies(), log.properties()
    if not whole:
        bodies, properties = bodies.take(places), properties.take(places)
    tags = log.tags() if whole else log.tags().take(places)
    codes = log.tags_codes()[rows].astype(np.int32)
    codes[np.asarray(tags.is_null())] = NO_KEY_CODE

    plain, trailing, texts = _plain_properties(properties)
    bits = np.where(plain, 0, BIT_RAW_PROPERTIES) | np.where(trailing, BIT_TRAILING_SEPARATOR, 0)
    bits |= np.where(columns["magic_code"] == MAGIC_V2, BIT_V2, 0)
    narrow = (columns["sys_flag"] & (SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)) == 0
    reserved = _reserved_column(log, rows, bits, narrow)
    special = np.flatnonzero(~(plain & narrow))
    if len(special):
        reserved, texts = _with_special(
            log, rows, bits, narrow, special, reserved, texts, properties
        )
    system = _system_items(tags, columns["store_timestamp"])
    commas = pa.array([b"", b","], pa.large_binary()).take(
        pa.array((binary_sizes(texts) > 0).astype(np.int8))
    )
    sizes = sum(binary_sizes(part) for part in (system, reserved, commas, texts))
    lengths = kernels.fixed_binary(np.asarray(sizes).astype(">i4").view("V4"))
    count = len(rows)
    return RecordColumns(
        columns["queue_id"],
        codes,
        columns["store_timestamp"],
        _born_addresses(log, rows, narrow),
        columns["physical_offset"],
        np.full(count, FLAG_HAS_ATTRIBUTES, np.int32),
        [lengths, system, reserved, commas, texts, bodies],
    )


def _plain_properties(properties: pa.LargeBinaryArray) -> tuple[Array, Array, Any]:
    """Return (is plain, ends in a separator, attribute texts) of property strings."""
    sizes = binary_sizes(properties)
    bounds = kernels.offsets_of(sizes)
    first = np.frombuffer(properties.buffers()[1], np.int64)[properties.offset] if len(sizes) else 0
    buffer = properties.buffers()[2]
    raw = kernels.bytes_of(buffer)[first : first + bounds[-1]] if buffer else np.empty(0, np.uint8)
    trailing = np.zeros(len(sizes), bool)
    filled = np.flatnonzero(sizes > 0)
    trailing[filled] = raw[bounds[1:][filled] - 1] == ord(PROPERTY_SEPARATOR)
    ends = bounds[1:] - trailing
    plain = _pairs_are_whole(raw, bounds[:-1], ends)
    strange = np.flatnonzero(_NOT_PLAIN[raw])
    plain[np.searchsorted(bounds, strange, side="right") - 1] = False
    texts = kernels.slices(_TO_ATTRIBUTES[raw].data, bounds[:-1], ends - bounds[:-1])
    return plain, trailing, texts


def _pairs_are_whole(raw: Array, starts: Array, ends: Array) -> Array:
    """Return whether each string is name, U+0001, value, U+0002, name …: no part empty.

    Reads only the separators, a handful a string. `starts` ascend and strings do not overlap.
    """
    at = np.flatnonzero((raw == 1) | (raw == 2))
    owners = np.searchsorted(starts, at, side="right") - 1
    inside = at < ends[owners] if len(at) else np.zeros(0, bool)
    at, owners = at[inside], owners[inside]
    counts = np.bincount(owners, minlength=len(starts))
    first = np.searchsorted(owners, np.arange(len(starts)))
    ordinal = np.arange(len(at)) - first[owners]
    # Kinds alternate 1, 2, 1 … 1; before, between and behind separators there is something.
    wrong = raw[at] != 1 + ordinal % 2
    previous = np.where(ordinal == 0, starts[owners] - 1, np.append(-2, at[:-1])[: len(at)])
    wrong |= (at - previous == 1) | (at == ends[owners] - 1)
    whole = counts % 2 == 1
    whole[owners[wrong]] = False
    return np.asarray(whole | (ends == starts))


def _reserved_column(log: LogColumns, rows: Array, bits: Array, narrow: Array) -> Any:
    """Return `$rmq$=…` of the rows with IPv4 hosts (others get one that is replaced)."""
    layout = RESERVED[0]
    packed = np.zeros(len(rows), layout.dtype)
    packed["version"], packed["bits"] = RESERVED_VERSION, bits
    for name in (
        "flag",
        "sys_flag",
        "queue_offset",
        "born_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
    ):
        packed[name] = log.column(name)[rows]
    for name in ("born_host", "store_host"):
        hosts = log.hosts(name)
        if narrow.all() and len(rows) == len(log):
            packed[name] = np.frombuffer(hosts.buffers()[2], "V8", len(rows))
        else:
            texts = [host.as_py()[:8] for host in hosts.take(pa.array(rows))]
            packed[name] = np.array(texts, "V8")
    return kernels.fixed_binary(_with_key(packed))


def _with_key(packed: Array) -> Array:
    """Encode rows as base64 and put the key in front; one fixed-size element a row."""
    triples = packed.view(np.uint8).reshape(len(packed), -1, 3).astype(np.uint16)
    first, middle, last = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
    # Twelve bits at a time are two letters; key and letters of a row have an even size.
    keys = len(_KEY_BYTES) // 2
    joined = np.empty((len(packed), keys + 2 * triples.shape[1]), np.uint16)
    joined[:, :keys] = _KEY_BYTES.view(np.uint16)
    joined[:, keys::2] = _PAIRS[first << 4 | middle >> 4]
    joined[:, keys + 1 :: 2] = _PAIRS[(middle & 15) << 8 | last]
    return joined.view(f"V{2 * joined.shape[1]}").reshape(-1)


def _with_special(
    log: LogColumns,
    rows: Array,
    bits: Array,
    narrow: Array,
    special: Array,
    reserved: Any,
    texts: Any,
    properties: Any,
) -> tuple[Any, Any]:
    """Replace what does not fit the fast way: IPv6 hosts, property strings that are not plain.

    Keys with a space between them are such a string, and frequent. With IPv4 hosts the string's
    base64 is appended to what the fast way has made: the size of that is a multiple of 3.
    """
    chosen = pa.array(special)
    raws, own = properties.take(chosen).to_pylist(), reserved.take(chosen).to_pylist()
    for number in np.flatnonzero(~narrow[special]).tolist():
        own[number] = _wide(log, int(rows[special[number]]), int(bits[special[number]]))
    not_plain = bits[special] & BIT_RAW_PROPERTIES != 0
    kept = texts.take(chosen).to_pylist()
    for number in np.flatnonzero(not_plain).tolist():
        own[number] += base64.urlsafe_b64encode(raws[number]).rstrip(b"=")
        kept[number] = _plain_pairs(raws[number])
    places = np.arange(len(rows))
    places[special] = len(rows) + np.arange(len(special))
    order = pa.array(places)
    reserved = pa.concat_arrays([reserved, pa.array(own, pa.large_binary())])
    texts = pa.concat_arrays([texts, pa.array(kept, pa.large_binary())])
    return reserved.take(order), texts.take(order)


def _wide(log: LogColumns, row: int, bits: int) -> bytes:
    """Return `$rmq$=…` of a row with hosts of any length, without its property string."""
    hosts = {name: log.hosts(name)[row].as_py() for name in ("born_host", "store_host")}
    layout = RESERVED[(len(hosts["born_host"]) == 20) + 2 * (len(hosts["store_host"]) == 20)]
    fields = {name: int(log.column(name)[row]) for name in RESERVED_FIELDS if name not in hosts}
    blob = layout.pack(version=RESERVED_VERSION, bits=bits, **hosts, **fields)
    return _KEY_BYTES.tobytes() + base64.urlsafe_b64encode(blob)


def _plain_pairs(raw: bytes) -> bytes:
    """Return those pairs of a property string that a TubeMQ reader can take as attributes."""
    pairs = []
    for name, value in parse_properties(raw.decode(errors="replace")).items():
        if not _STRANGE.search(name) and not _STRANGE.search(value):
            pairs.append(f"{name}={value}")
    return ",".join(pairs).encode()


def _system_items(tags: Any, times: Array) -> Any:
    """Return `$msgType$=…,$msgTime$=…,` of each row, encoding each (tag, minute) once."""
    encoded = tags.dictionary_encode()
    texts = [_representable(tag) for tag in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    minutes = times // 60_000
    low = int(minutes.min(initial=0))
    width = len(texts) + 1
    pairs, rows = np.unique((places + 1) + (minutes - low) * width, return_inverse=True)
    distinct = []
    for pair in pairs.tolist():
        minute, place = divmod(pair, width)
        tag = texts[place - 1] if place else None
        # A type is only there with a time; without a type the time is alone.
        prefix = encode_prefix(tag or "-", (minute + low) * 60_000)[4:]
        if tag is None:
            prefix = prefix[prefix.index(b",") + 1 :]
        distinct.append(prefix + b",")
    return pa.array(distinct, pa.large_binary()).take(pa.array(rows))


def _representable(tag: bytes) -> str | None:
    """Return a tag that can be a `$msgType$`, None for others (it is in the properties too)."""
    text = tag.decode(errors="replace")
    if text.strip() != text or not text or any(c in text for c in ",=$"):
        return None
    return text


def _born_addresses(log: LogColumns, rows: Array, narrow: Array) -> Array:
    hosts = log.hosts("born_host")
    if narrow.all() and len(rows) == len(log):
        words = np.frombuffer(hosts.buffers()[2], ">i4", 2 * len(rows))
        return words[0::2].astype(np.int32)
    picked = hosts.take(pa.array(rows)).to_pylist()
    return np.array(
        [int.from_bytes(h[:4], "big", signed=True) if len(h) == 8 else 0 for h in picked], np.int32
    )


def from_tube(
    topic: str,
    partition_id: int,
    received_time: int,
    msg_id: int,
    attribute_text: bytes,
    body: bytes,
) -> MessageRecord | None:
    """Return the log record that a tube record was made from; None if it has no `$rmq$`.

    The record's size and checksum are computed from its parts.
    """
    items = parse_text(attribute_text)
    blob_text = items.get(RESERVED_KEY)
    if blob_text is None:
        return None
    blob = _blob_of(blob_text)
    sys_flag = RESERVED[0].unpack_from(blob).sys_flag
    layout = RESERVED[
        bool(sys_flag & SYS_FLAG_BORN_HOST_V6) + 2 * bool(sys_flag & SYS_FLAG_STORE_HOST_V6)
    ]
    found = layout.unpack_from(blob)
    if found.bits & BIT_RAW_PROPERTIES:
        properties = blob[layout.size :].decode(errors="surrogateescape")
    else:
        own = attribute_text.decode().partition(f"{RESERVED_KEY}={blob_text}")[2].removeprefix(",")
        properties = own.replace("=", NAME_VALUE_SEPARATOR).replace(",", PROPERTY_SEPARATOR)
        if found.bits & BIT_TRAILING_SEPARATOR:
            properties += PROPERTY_SEPARATOR
    return _message_record(topic, partition_id, received_time, msg_id, found, properties, body)


def queue_offset_in(attributes: Mapping[str, str | None]) -> int | None:
    """Return the queue offset of the log record that a message was made from; None without one."""
    text = attributes.get(RESERVED_KEY)
    return None if text is None else int(RESERVED[0].unpack_from(_blob_of(text)).queue_offset)


def _blob_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _message_record(
    topic: str,
    queue_id: int,
    store_timestamp: int,
    physical_offset: int,
    found: Any,
    properties: str,
    body: bytes,
) -> MessageRecord:
    magic = MAGIC_V2 if found.bits & BIT_V2 else MAGIC_V1
    raw = properties.encode(errors="surrogateescape")
    size = record_size(hosts_of(found.sys_flag), magic, len(body), len(topic.encode()), len(raw))
    return MessageRecord(
        physical_offset=physical_offset,
        size=size,
        version=2 if magic == MAGIC_V2 else 1,
        topic=topic,
        queue_id=queue_id,
        queue_offset=found.queue_offset,
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp=found.born_timestamp,
        store_timestamp=store_timestamp,
        born_host_bytes=found.born_host,
        store_host_bytes=found.store_host,
        reconsume_times=found.reconsume_times,
        prepared_transaction_offset=found.prepared_transaction_offset,
        body_crc=kernels.crc32(body) & BODY_CRC_MASK if body else 0,
        properties_text=properties,
        body=body,
    )
