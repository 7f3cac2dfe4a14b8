"""Settings of a store and of a topic: frozen, each with its unit, default and reason.

The defaults are TubeMQ's where it has the setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal

from tubestore.errors import InvalidMessage
from tubestore.values import (
    WHOLE_END,
    AgeInMs,
    AgeOrNone,
    SizeInBytes,
    SizeOrNone,
    age_ms,
    hinted,
    setting,
    size_bytes,
    whole_number,
)

#: Partition ids of one store; store id = partition id // this.
PARTITIONS_PER_STORE = 10_000
#: What a TubeMQ cluster takes unless it is configured otherwise: 1 MiB and 10 KiB of attributes.
DEFAULT_PAYLOAD_SIZE_MAX = 1_058_816
#: Bytes of an index entry; `record/layouts.py` declares it.
ENTRY_SIZE = 28

Durability = Literal["memory", "page_cache", "fsync"]
#: From the weakest to the strongest; a level promises everything that those before it promise.
DURABILITIES: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
OnDamage = Literal["raise", "isolate"]


def check_durability(value: str) -> Durability:
    """Return the level, or raise ValueError naming the three."""
    if value not in DURABILITIES:
        raise ValueError(f"durability {value!r}: one of {', '.join(DURABILITIES)}")
    return value


def _in_unit(name: str, kind: Any, value: Any) -> Any:
    """Return a text such as "1GB" in bytes, "10s" or a timedelta in ms; else the value."""
    if isinstance(value, str | timedelta) and kind in ("AgeInMs", "AgeOrNone"):
        return age_ms(value, name)
    if isinstance(value, str) and kind in ("SizeInBytes", "SizeOrNone"):
        return size_bytes(value, name)
    return value


@hinted
@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of one process's use of a store, as `tubestore.open` takes them; none is on disk.

    Sizes are bytes or texts ("1GB"), times of `…_ms` milliseconds, texts ("10s") or timedeltas.

    Messages:

    - `durability`: the level of appends that name none: "memory", "page_cache" or "fsync".
    - `on_damage`: "isolate" shows damaged messages as rows with a state; "raise" raises
      CorruptRecord.
    - `payload_size_max`: bytes of the largest body together with its attributes.
    - `key_attribute`: the name of an attribute that gets the key of each append; the format itself
      keeps no keys. None: keys are not kept.

    Files:

    - `segment_size_bytes`: a data file ends with the write that brings it to this size.
    - `index_segment_size_bytes`: the same for index files.

    Buffers:

    - `mem_store_size_bytes`, `mem_store_messages`: a shard has two buffers. One that has this
      many bytes of records, or this many messages, is full and is written to the files.
    - `mem_flush_interval_ms`: a buffer of this age is written in any case.
    - `memory_bound_bytes`: bytes of all buffers of the store together.
    - `append_timeout_ms`: how long an append waits for room in the buffers before it raises
      StoreBusy.
    - `flush_workers`: threads that write full buffers.

    Syncs in the background, of a shard:

    - `sync_after_messages`: after this many messages in its files that are not synced,
    - `sync_after_bytes`: or this many bytes of them (0: whatever their size),
    - `sync_after_ms`: or this long after the last sync. Messages at `page_cache` are lost by a
      power cut only from the last sync on.

    Journals of the root, for messages that come into the files of their shards later:

    - `ring_journal`: single messages above `memory` go to the ring journal. False: each is two
      small writes to its shard's files.
    - `ring_size_bytes`: size of the ring; it has four segments or more, of 8 MiB at most.
    - `journal_shards_min`: a batch over this many shards or more, small in each, is one write to
      the other journal.
    - `journal_size_bytes`: size at which that journal is emptied into the shards. 0: there is none.
    - `journal_flush_ms`: age at which it is emptied, unless it fills up within seconds anyway.
      Readers of this package see what is in the journals; `dump` and TubeMQ see the files alone.

    Removal:

    - `retention_interval_ms`: time between two looks for files that retention removes.
    - `trash_grace_ms`: how long a removed file stays in the trash, for readers that have it open.
    - `staging_grace_ms`: time without a write after which the background removes what a job
      staged and did not publish.
    - `compact_files_min`: the background merges full files of a shard that are small and lie side
      by side when so many of them become one. 0: it merges none.

    >>> StoreOptions(durability="fsync", sync_after_ms=1000).durability
    'fsync'
    >>> StoreOptions(flush_workers=0)
    Traceback (most recent call last):
    ValueError: flush_workers = 0: too small
    """

    durability: Durability = "page_cache"
    on_damage: OnDamage = "isolate"
    segment_size_bytes: SizeInBytes = setting(1 << 30)
    index_segment_size_bytes: SizeInBytes = setting(700_000 * ENTRY_SIZE)
    mem_store_size_bytes: SizeInBytes = setting(1_572_864)
    mem_store_messages: int = 5120
    mem_flush_interval_ms: AgeInMs = setting(20_000)
    sync_after_messages: int = 1000
    sync_after_bytes: SizeInBytes = setting(0)
    sync_after_ms: AgeInMs = setting(10_000)
    memory_bound_bytes: SizeInBytes = setting(256 << 20)
    journal_shards_min: int = 8
    journal_size_bytes: SizeInBytes = setting(128 << 20)
    journal_flush_ms: AgeInMs = setting(5000)
    ring_journal: bool = True
    ring_size_bytes: SizeInBytes = setting(128 << 20)
    flush_workers: int = 2
    append_timeout_ms: AgeInMs = setting(5000)
    payload_size_max: SizeInBytes = setting(DEFAULT_PAYLOAD_SIZE_MAX)
    key_attribute: str | None = None
    retention_interval_ms: AgeInMs = setting(180_000)
    trash_grace_ms: AgeInMs = setting(120_000)
    staging_grace_ms: AgeInMs = setting(86_400_000)
    compact_files_min: int = 8

    def __post_init__(self) -> None:
        check_durability(self.durability)
        if self.on_damage not in ("raise", "isolate"):
            raise ValueError(f"on_damage {self.on_damage!r}: 'raise' or 'isolate'")
        name = self.key_attribute
        if name is not None and not isinstance(name, str):
            raise TypeError(f"key_attribute = {name!r}: a text is needed")
        if name is not None and (not name.strip() or set(name) & set(",=$")):
            raise ValueError(f"key_attribute = {name!r}: the name of an attribute, without , = $")
        zero_is_off = {
            "sync_after_bytes",
            "append_timeout_ms",
            "journal_size_bytes",
            "trash_grace_ms",
            "compact_files_min",
        }
        for each in fields(self):
            if each.type not in ("int", "SizeInBytes", "AgeInMs"):
                continue
            value = _in_unit(each.name, each.type, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            number = whole_number(value)
            if number is None:
                raise TypeError(f"{each.name} = {value!r}: a whole number is needed")
            if number < (0 if each.name in zero_is_off else 1):
                raise ValueError(f"{each.name} = {value}: too small")
            if number >= WHOLE_END:
                raise ValueError(f"{each.name} = {value}: below 2**62")
        if self.compact_files_min == 1:
            raise ValueError("compact_files_min = 1: 2 files or more become one, or 0 for none")

    def with_values(self, **values: Any) -> StoreOptions:
        """Return a copy with some settings changed; an unknown name is a TypeError."""
        return replace(self, **values)


#: The settings of a topic that are numbers, and what they are.
_OF_TOPIC = (
    ("partitions", "int"), ("stores", "int"), ("max_age_ms", "AgeOrNone"),
    ("max_bytes", "SizeOrNone"),
)  # fmt: skip


@hinted
@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Settings of a topic; kept in `<root>/.tubestore/topics.json`.

    - `partitions`: partitions in each of the topic's stores, 1 to 10,000; may only rise.
    - `stores`: stores (shards) of the topic, 1 to 10,000; may only rise.
    - `routing`: how a key chooses its partition; recorded so that it stays the same for ever.
    - `max_age_ms`: retention removes messages that are older: ms, a text ("7d") or a timedelta.
      None: none by age.
    - `max_bytes`: retention removes the oldest while the topic's files are larger: bytes, or a text
      ("10GB"). None: no bound.
    - `id`: distinguishes a topic from a deleted one of the same name; 0: not known.
    """

    partitions: int = 1
    stores: int = 1
    routing: str = "xxh3_64"
    max_age_ms: AgeOrNone = setting(None)
    max_bytes: SizeOrNone = setting(None)
    id: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        for name, kind in _OF_TOPIC:
            value = _in_unit(name, kind, getattr(self, name))
            object.__setattr__(self, name, value)
            if value is None and name.startswith("max_"):
                continue
            if whole_number(value) is None:
                raise InvalidMessage(f"{name} = {value!r}: a whole number is needed")
        if not 1 <= self.partitions <= PARTITIONS_PER_STORE:
            text = f"partitions = {self.partitions}: 1 to {PARTITIONS_PER_STORE} a store"
            raise InvalidMessage(text)
        if not 1 <= self.stores <= PARTITIONS_PER_STORE:
            raise InvalidMessage(f"stores = {self.stores}: 1 to {PARTITIONS_PER_STORE}")
        if self.routing != "xxh3_64":
            raise InvalidMessage(f"routing {self.routing!r} is not known to this version")
        for name in ("max_age_ms", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 1 << 63:
                raise InvalidMessage(f"{name} = {value}: 1 to 2**63 - 1, or None for no bound")

    @property
    def partition_count(self) -> int:
        """Partitions of the topic in all its stores."""
        return self.partitions * self.stores

    def partition_id(self, number: int) -> int:
        """Return the id of the topic's `number`-th partition: store * 10000 + its place there."""
        store, place = divmod(number, self.partitions)
        return store * PARTITIONS_PER_STORE + place

    def partition_names(self) -> str:
        """Return the ids of all partitions as a text: "0 to 3", "0 to 3 of each store …"."""
        first = f"partitions 0 to {self.partitions - 1}" if self.partitions > 1 else "partition 0"
        if self.stores == 1:
            return first
        return f"{first} in each of {self.stores} stores: store * {PARTITIONS_PER_STORE} + number"

    def holds(self, partition_id: int) -> bool:
        """True if this id is one of the topic's partitions (TubeMQ checks one bound only)."""
        store, place = divmod(partition_id, PARTITIONS_PER_STORE)
        return 0 <= store < self.stores and place < self.partitions

    def grown_to(self, other: TopicOptions) -> TopicOptions:
        """Return these settings with at least the partitions and stores of `other`."""
        return replace(
            self,
            partitions=max(self.partitions, other.partitions),
            stores=max(self.stores, other.stores),
        )

    def covers(self, other: TopicOptions) -> bool:
        """True if every partition of the other settings is one of these."""
        return self.partitions >= other.partitions and self.stores >= other.stores

    def with_values(self, **values: Any) -> TopicOptions:
        """Return a copy with some settings changed; an unknown name is a TypeError."""
        return replace(self, **values)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as topics.json has them, without those that were not set."""
        # Not `asdict`, which copies deeply: each change writes all topics there are.
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in settings.items() if value not in (None, 0)}
