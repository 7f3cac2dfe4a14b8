"""The options of a store, under RocketMQ's names in snake_case.

`MessageStoreConfig` is frozen and checked when it is made; sizes are bytes, intervals ms
unless the name has another unit. Defaults are those of 4.9.8.

>>> config = MessageStoreConfig.from_camel({"mappedFileSizeCommitLog": 4096})
>>> config.mapped_file_size_commit_log
4096
>>> MessageStoreConfig(mapped_file_size_consume_queue=130).consume_queue_file_size
140
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_FILE_SIZE,
    BATCH_CQ_UNIT,
    BLANK,
    COMMIT_LOG_DIRECTORY,
    COMMIT_LOG_FILE_SIZE,
    CONSUME_QUEUE_EXT_FILE_SIZE,
    CONSUME_QUEUE_FILE_SIZE,
    CQ_UNIT,
    HASH_SLOTS,
    INDEX_ITEMS,
    INT32_MAX,
    MESSAGE_HEAD,
    MESSAGE_SIZE_MAX,
    RECORD_SIZE_SLACK,
    TOPIC_SIZE_MAX,
    TOPIC_SIZE_MAX_V2,
    encode_host,
)
from tubestore.core.doors import logger
from tubestore.errors import InvalidMessage, unknown_name
from tubestore.options import StoreOptions
from tubestore.values import WHOLE_END, SizeInBytes, hinted, setting, size_bytes

_log = logger(__name__)
LAYOUTS = frozenset({"consume_queue", "index", "tube"})
#: Those of a store that asks for nothing else: RocketMQ's own.
KEPT = frozenset({"consume_queue", "index"})
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CHOICES = {
    "flush_disk_type": ("ASYNC_FLUSH", "SYNC_FLUSH"),
    "compat": ("4.9.8", "5.3.3"),
    "recovery": ("tubestore", "upstream"),
}
#: Options of a broker that choose another kind of store, and the values that do not.
_COMMON_KIND = {
    "storeType": ("default",),
    "brokerRole": ("async_master", "sync_master"),
}
#: Options in bytes: "4MiB" is taken as well.
_SIZES = frozenset({
    "mapped_file_size_commit_log", "mapped_file_size_consume_queue",
    "mapped_file_size_consume_queue_ext", "mapper_file_size_batch_consume_queue",
    "max_message_size", "max_transfer_bytes_on_message_in_memory",
    "max_transfer_bytes_on_message_in_disk", "dispatch_batch_bytes_max", "dispatch_inline_bytes",
})  # fmt: skip
#: Smallest value of each numeric option; what is not here must not be negative.
_LEAST = {
    "mapped_file_size_commit_log": MESSAGE_HEAD.size + BLANK.size,
    "mapped_file_size_consume_queue": 1,
    "mapped_file_size_consume_queue_ext": 64,
    "mapper_file_size_batch_consume_queue": BATCH_CQ_UNIT.size,
    "max_hash_slot_num": 1,
    "max_index_num": 2,
    "max_message_size": 1,
    "max_topic_length": 1,
    "flush_interval_commit_log": 1,
    "flush_least_pages_when_warm_maped_file": 1,
    "flush_interval_consume_queue": 1,
    "commit_interval_commit_log": 1,
    "dispatch_batch_bytes_max": 1,
    "clean_resource_interval": 1,
    "delete_file_batch_max": 1,
}


@hinted
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStoreConfig:
    """How a store is laid out and run; make a changed copy with `changed`.

    RocketMQ's options keep their names, in snake_case, their meaning and the defaults of 4.9.8.
    Sizes are bytes or texts ("1GB"), times ms where nothing else is named. *Added* are options
    that RocketMQ does not have. For a store that is there, `rocketcompat.open` takes sizes of
    files that are left at their defaults from its files.

    Files of the log:

    - `mapped_file_size_commit_log`: size of a file.
    - `store_path_commit_log`: the directory of the files, or several, separated by commas, which
      get files in turn; relative ones are below the root. "": `commitlog` below the root.
    - `read_only_commit_log_store_paths`: directories with files of the log in which no new ones are
      made, such as full disks.
    - `multi_path_splitter`: what separates paths; RocketMQ has it as a property of its process.
    - `write_without_mmap`: False writes the log's files through maps, as RocketMQ does.
    - `warm_maped_file_enable`: with maps, every page of a new file is touched before it is used.
    - `flush_least_pages_when_warm_maped_file`: pages that are touched between two syncs of such a
      file, with SYNC_FLUSH.

    Queues and index:

    - `mapped_file_size_consume_queue`: size of a queue's file, rounded up to whole units.
    - `enable_consume_queue_ext`: units get an extension: tags code, store time, bits of filters.
    - `mapped_file_size_consume_queue_ext`: size of a file of extensions.
    - `batch_topics`: added: topics with queues of inner batches, besides those that the store's
      own configuration names.
    - `mapper_file_size_batch_consume_queue`: size of a file of such a queue.
    - `message_index_enable`: False keeps no index.
    - `max_hash_slot_num`, `max_index_num`: slots and items of an index file.

    Puts:

    - `flush_disk_type`: "SYNC_FLUSH": a put returns when its message is on stable storage;
      "ASYNC_FLUSH": when it is in the page cache.
    - `sync_flush_timeout`: how long a put waits for its sync.
    - `max_message_size`: bytes of the largest body; a record may have 64 KiB more.
    - `max_topic_length`: UTF-8 bytes of a topic's name. More than 127 (records of version 2)
      with `compat="5.3.3"` only, and 255 at most.
    - `auto_message_version_on_topic_len`: False refuses topics that need version 2.
    - `enabled_append_prop_crc`: writes 5.3.3's checksum of the whole record.
    - `os_page_cache_busy_time_out_mills`: a put is refused while another one has been writing for
      longer.
    - `store_host`: added: the broker's address and port in messages that name none; clients find it
      in message ids.

    Flushes in the background:

    - `flush_interval_commit_log`, `flush_commit_log_least_pages`: how often dirty pages of the log
      are counted, and how many are synced.
    - `flush_interval_consume_queue`, `flush_consume_queue_least_pages`: the same for each queue.
    - `flush_commit_log_thorough_interval`, `flush_consume_queue_thorough_interval`: how often all
      is synced, whatever its size. A value above 10,000 changes nothing: everything is synced
      with the marks every 10 s.
    - `transient_store_pool_enable`: puts go to memory first, and to the page cache in few large
      writes; with ASYNC_FLUSH only. They are acknowledged from memory, as in RocketMQ: a kill
      loses what was not committed.
    - `transient_store_pool_size`: buffers of the pool; each has the size of a file of the log.
    - `commit_interval_commit_log`, `commit_commit_log_least_pages`,
      `commit_commit_log_thorough_interval`: when the pool's content goes to the page cache.

    Reads:

    - `access_message_in_memory_max_ratio`: percent of the machine's memory; so much of the end of
      the log counts as being in memory.
    - `max_transfer_bytes_on_message_in_memory`, `max_transfer_count_on_message_in_memory`: bytes
      and messages of a pull from there, at most.
    - `max_transfer_bytes_on_message_in_disk`, `max_transfer_count_on_message_in_disk`: the same for
      older messages.
    - `default_query_max_num`, `max_msgs_num_batch`: messages of a query by key that names no
      number, and of any.

    Copies and delays of a message:

    - `enable_multi_dispatch`: the property INNER_MULTI_DISPATCH gives a message units in further
      queues.
    - `enable_lmq`, `max_lmq_consume_queue_num`: also in queues of %LMQ%, and how many.
    - `message_delay_level`: the delays of level 1, 2, …
    - `enable_schedule_message`: a store with background threads delivers delayed messages.
    - `flush_delay_offset_interval`: how often the progress of the levels is written.

    Removal of old files:

    - `delete_when`: hours of the day in which files are deleted, separated by ";".
    - `file_reserved_time`: hours for which a file is kept after its last change.
    - `disk_max_used_space_ratio`: percent of the disk above which expired files go at any hour.
    - `disk_space_clean_forcibly_ratio`, `clean_file_forcibly_enable`: percent above which files go
      whatever their age; False: never.
    - `disk_space_warning_level_ratio`: percent above which puts are refused.
    - `clean_resource_interval`, `delete_file_batch_max`: time between two rounds, and files of one.

    Recovery:

    - `recovery`: added: "upstream" cuts the log at the first bad record, as RocketMQ does;
      "tubestore" never cuts sound data.
    - `check_crc_on_recover`: compares the checksums of bodies.
    - `force_verify_prop_crc`: compares 5.3.3's checksums of whole records.
    - `accept_lost_log`: added: opens a store for writing that lacks its log or the last files of
      it, which is refused else: a new log begins, or the log goes on behind what is left. What
      queues, index and shards had of the rest goes to `.tubestore/quarantine` below the root.

    The rest is added:

    - `compat`: the version to write as, where versions differ.
    - `layouts`: the structures that are built from the log. Shards ("tube") are a second copy of
      every body: a store has them when they are asked for, and from then on.
    - `tube_options`: a `tubestore.StoreOptions` for the shards. Their durability, journal and
      largest payload follow from the log.
    - `dispatch_linger`: puts that come one after the other are handed to the structures together,
      as late as this (ms); one after a pause at once. The dispatcher waits a few times as long as
      the last handing over took: 2 ms beside single puts, up to a second over 10,000 queues.
    - `dispatch_batch_bytes_max`: bytes of the log that are handed over together.
    - `dispatch_inline_bytes`: a put that finds so many bytes waiting hands them over itself. 0: the
      dispatcher's thread does it all.
    - `wait_dispatched_timeout`: how long `flush` and `wait_dispatched` wait for the structures.

    What follows from them:

    - `record_size_max`: bytes of the largest record: RocketMQ's limit, and what a file can hold.
    - `topic_size_max`: UTF-8 bytes of the longest topic.
    - `delay_levels_ms`: the delays in ms.
    - `unknown`: names in a broker's file that are no option here (`from_file`).

    >>> config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH")
    >>> config.changed(mapped_file_size_commit_log=1 << 20).mapped_file_size_commit_log
    1048576
    """

    mapped_file_size_commit_log: SizeInBytes = setting(COMMIT_LOG_FILE_SIZE)
    store_path_commit_log: str = ""
    read_only_commit_log_store_paths: str = ""
    multi_path_splitter: str = ","
    mapped_file_size_consume_queue: SizeInBytes = setting(CONSUME_QUEUE_FILE_SIZE)
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: SizeInBytes = setting(CONSUME_QUEUE_EXT_FILE_SIZE)
    batch_topics: frozenset[str] = frozenset()
    mapper_file_size_batch_consume_queue: SizeInBytes = setting(BATCH_CONSUME_QUEUE_FILE_SIZE)
    max_hash_slot_num: int = HASH_SLOTS
    max_index_num: int = INDEX_ITEMS
    message_index_enable: bool = True
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    write_without_mmap: bool = True
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    max_message_size: SizeInBytes = setting(MESSAGE_SIZE_MAX)
    max_topic_length: int = TOPIC_SIZE_MAX
    auto_message_version_on_topic_len: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    check_crc_on_recover: bool = True
    max_transfer_bytes_on_message_in_memory: SizeInBytes = setting(256 * 1024)
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: SizeInBytes = setting(64 * 1024)
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    enable_multi_dispatch: bool = False
    enable_lmq: bool = False
    max_lmq_consume_queue_num: int = 20_000
    os_page_cache_busy_time_out_mills: int = 1000
    message_delay_level: str = DELAY_LEVELS
    flush_delay_offset_interval: int = 10_000
    delete_when: str = "04"
    file_reserved_time: int = 72
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: int = 90
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: int = 10_000
    delete_file_batch_max: int = 10
    accept_lost_log: bool = False
    compat: Literal["4.9.8", "5.3.3"] = "4.9.8"
    recovery: Literal["tubestore", "upstream"] = "tubestore"
    layouts: frozenset[str] = KEPT
    tube_options: StoreOptions | None = None
    store_host: str = "127.0.0.1:10911"
    dispatch_batch_bytes_max: SizeInBytes = setting(8 << 20)
    dispatch_inline_bytes: SizeInBytes = setting(2 << 20)
    dispatch_linger: int = 1000
    wait_dispatched_timeout: int = 5000
    enable_schedule_message: bool = True
    unknown: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())
    record_size_max: int = field(init=False, repr=False, default=0)
    topic_size_max: int = field(init=False, repr=False, default=0)
    delay_levels_ms: tuple[int, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.name in _SIZES and isinstance(getattr(self, option.name), str):
                size = size_bytes(getattr(self, option.name), option.name)
                object.__setattr__(self, option.name, size)
            _check(option.name, getattr(self, option.name), option.default)
        room = self.mapped_file_size_commit_log - BLANK.size
        limit = min(self.max_message_size + RECORD_SIZE_SLACK, room)
        object.__setattr__(self, "record_size_max", limit)
        has_v2 = self.compat == "5.3.3" and self.auto_message_version_on_topic_len
        longest = min(self.max_topic_length, TOPIC_SIZE_MAX_V2 if has_v2 else TOPIC_SIZE_MAX)
        object.__setattr__(self, "topic_size_max", longest)
        object.__setattr__(self, "layouts", frozenset(self.layouts))
        object.__setattr__(self, "batch_topics", frozenset(self.batch_topics))
        if self.mapper_file_size_batch_consume_queue % BATCH_CQ_UNIT.size:
            size = self.mapper_file_size_batch_consume_queue
            raise InvalidMessage(
                f"mapper_file_size_batch_consume_queue: {size} is not a multiple of a unit's"
                f" {BATCH_CQ_UNIT.size} bytes; no broker could fill the file"
            )
        try:
            encode_host(self.store_host)
        except ValueError as error:
            raise InvalidMessage(f"store_host: {error}") from None
        if not self.multi_path_splitter:
            raise InvalidMessage("multi_path_splitter: is empty")
        unknown = self.layouts - LAYOUTS
        if unknown:
            raise InvalidMessage(f"layouts: unknown {sorted(unknown)}, known {sorted(LAYOUTS)}")
        object.__setattr__(self, "delay_levels_ms", _delays(self.message_delay_level))
        _ = self.delete_hours

    @classmethod
    def from_camel(cls, options: Mapping[str, Any], *, ignore_unknown: bool = False) -> Self:
        """Make one from RocketMQ's own names; text is converted to the option's type.

        Options that this store has no use for are refused by name, so that none is without
        effect; a broker's whole configuration needs `ignore_unknown`.
        """
        known = {option.name: option.default for option in fields(cls) if option.init}
        values = {}
        for camel, value in options.items():
            name = camel_to_snake(camel)
            _refuse_other_store(camel, value)
            if name not in known:
                if ignore_unknown:
                    continue
                names = [re.sub("_(.)", lambda found: found[1].upper(), each) for each in known]
                raise InvalidMessage(f"no option of this store: {unknown_name(camel, names)}")
            values[name] = _converted(camel, value, known[name])
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **overrides: Any) -> Self:
        """Make one from a broker's `.conf` or `.properties` file; `overrides` have our names.

        The file is one of Java's (`java.util.Properties`). A broker's file has many options that
        this store has not: they are named in `unknown`, and in one line of the log. One that
        asks for a store of another kind is InvalidMessage.
        """
        import javaproperties

        with open(path, "rb") as file:
            try:
                pairs = javaproperties.load(file)
            except ValueError as error:  # an escape that is not valid
                raise InvalidMessage(f"{os.fspath(path)}: {error}") from error
        refuse_dledger_option(pairs)
        known = {option.name: option.default for option in fields(cls) if option.init}
        names = {camel_to_snake(camel): camel for camel in pairs}
        values = {name: _converted(camel, pairs[camel], known[name])
                  for name, camel in names.items() if name in known}  # fmt: skip
        for camel, value in pairs.items():
            _refuse_other_store(camel, value)
        config = cls(**{**values, **overrides})
        unknown = tuple(sorted(camel for name, camel in names.items() if name not in known))
        if unknown:
            _log.warning("%s: no options of this store: %s", os.fspath(path), ", ".join(unknown))
            object.__setattr__(config, "unknown", unknown)
        return config

    def changed(self, **options: Any) -> Self:
        """Return a copy with some options changed."""
        return replace(self, **options)

    def commit_log_directories(self, root: str) -> list[str]:
        """Return the directories in which a store at `root` makes files of the log.

        In the order in which they are used: sorted, as RocketMQ sorts them.
        """
        read_only = set(self.read_only_directories(root))
        names = self._paths(self.store_path_commit_log)
        found = {os.path.join(root, name) for name in names or [COMMIT_LOG_DIRECTORY]} - read_only
        if not found:
            raise InvalidMessage("store_path_commit_log: every path is a read-only one")
        return sorted(found)

    def read_only_directories(self, root: str) -> list[str]:
        """Return the directories that hold files of the log and get none."""
        return [os.path.join(root, name) for name in self._paths(
            self.read_only_commit_log_store_paths)]  # fmt: skip

    def _paths(self, text: str) -> list[str]:
        return [name.strip() for name in text.split(self.multi_path_splitter) if name.strip()]

    @property
    def record_size_setting(self) -> str:
        """The option that bounds `record_size_max`."""
        is_whole_file = self.record_size_max == self.mapped_file_size_commit_log - BLANK.size
        return "mapped_file_size_commit_log" if is_whole_file else "max_message_size"

    @property
    def uses_transient_pool(self) -> bool:
        """True if the pool is used: with asynchronous flushes only, as in RocketMQ."""
        return self.transient_store_pool_enable and self.flush_disk_type == "ASYNC_FLUSH"

    @property
    def consume_queue_file_size(self) -> int:
        """Bytes of a queue's file: what is configured, rounded up to whole units."""
        units = -(-self.mapped_file_size_consume_queue // CQ_UNIT.size)
        return units * CQ_UNIT.size

    @property
    def trailing_property_separator(self) -> bool:
        """True if a property string ends with its separator."""
        return self.compat == "5.3.3"

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day, local time, in which expired files are deleted."""
        parts = [part.strip() for part in self.delete_when.split(";") if part.strip()]
        if not all(part.isdecimal() and int(part) < 24 for part in parts):
            raise InvalidMessage(
                f"delete_when: {self.delete_when!r} is not a list of hours like 04;16"
            )
        return frozenset(map(int, parts))

    @property
    def space_ratio(self) -> int:
        """Percent of the disk above which expired files go at any hour; 10 … 95."""
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def warning_ratio(self) -> int:
        """Percent of the disk above which writes are refused; 35 … 90."""
        return min(max(self.disk_space_warning_level_ratio, 35), 90)

    @property
    def forcible_ratio(self) -> int:
        """Percent of the disk above which files go whatever their age; 30 … 85."""
        return min(max(self.disk_space_clean_forcibly_ratio, 30), 85)


def refuse_dledger_option(pairs: Mapping[str, str]) -> None:
    """Raise InvalidMessage for a broker's options that put its log into DLedger's files."""
    if pairs.get("enableDLegerCommitLog", "").strip().lower() == "true":
        raise InvalidMessage(
            "enableDLegerCommitLog: a log in DLedger's files is not supported;"
            " only the CommitLog's own files are"
        )


def _refuse_other_store(camel: str, value: Any) -> None:
    """Refuse what makes a broker keep its messages in files of another kind, or take none."""
    common = _COMMON_KIND.get(camel)
    if common is not None and str(value).strip().lower() not in common:
        raise InvalidMessage(f"{camel}={value}: such a store is not supported")


def _delays(text: str) -> tuple[int, ...]:
    """Return the delays of a list of levels, in ms."""
    try:
        found = tuple(int(part[:-1]) * _UNITS_MS[part[-1]] for part in text.split())
    except (KeyError, ValueError):
        found = (-1,)
    if not all(0 <= delay < WHOLE_END for delay in found):
        raise InvalidMessage(f"message_delay_level: {text!r} is not a list like '1s 5m 2h'")
    return found


def camel_to_snake(name: str) -> str:
    """Return RocketMQ's option name in snake_case.

    >>> camel_to_snake("checkCRCOnRecover"), camel_to_snake("mappedFileSizeConsumeQueue")
    ('check_crc_on_recover', 'mapped_file_size_consume_queue')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _check(name: str, value: Any, default: Any) -> None:
    """Refuse a value of the wrong type or outside its bounds."""
    if name == "tube_options":
        if value is not None and not isinstance(value, StoreOptions):
            raise InvalidMessage(f"{name}: {value!r} is no tubestore.StoreOptions")
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidMessage(f"{name}: {value!r} is none of {', '.join(_CHOICES[name])}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidMessage(f"{name}: {value!r} is neither True nor False")
    elif isinstance(default, int):
        least = _LEAST.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidMessage(f"{name}: {value!r} is not a whole number")
        if not least <= value <= INT32_MAX:
            raise InvalidMessage(f"{name}: {value} is outside {least} … {INT32_MAX}")
    elif isinstance(default, frozenset):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InvalidMessage(f"{name}: {value!r} is not a set of texts")
        if not all(isinstance(each, str) for each in value):
            raise InvalidMessage(f"{name}: {value!r} is not a set of texts")
    elif isinstance(default, str) and not isinstance(value, str):
        raise InvalidMessage(f"{name}: {value!r} is not a text")


def _converted(camel: str, value: Any, default: Any) -> Any:
    """Return text as the type of the option's default; other values as they are."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidMessage(f"{camel}: {value!r} is neither true nor false")
        return text.lower() == "true"
    if isinstance(default, int):
        try:
            return size_bytes(text, camel) if camel_to_snake(camel) in _SIZES else int(text)
        except InvalidMessage:
            raise
        except ValueError:
            raise InvalidMessage(f"{camel}: {value!r} is not a whole number") from None
    if isinstance(default, frozenset):
        return frozenset(text.replace(",", " ").split())
    return text
