"""A DataFrame's columns become those that a log takes: a RocketMQ store's own, or Kafka's.

| column | also | type | |
| --- | --- | --- | --- |
| `body` | `value` | binary, string | needed |
| `topic` | | string | or the option `topic` |
| `queue_id` | `partition` | int | else in turns, `numQueues` |
| `keys` | `key` | string, binary | |
| `tags` | | string | |
| `properties` | `headers` | map<string,string>, Kafka's array | `keys` and `tags` count before it |
| `born_timestamp` | | bigint | else `timestamp`, else the store time |
| `born_host`, `store_host` | | string | `address:port` |
| `flag`, `sys_flag`, `reconsume_times`, `prepared_transaction_offset` | | int, bigint | |

Offsets, sizes and times of the store, which a DataFrame over a store has, are assigned anew; a row
with a `state` other than ok is refused. A message that a store has put aside or delivered (it has
REAL_TOPIC among its properties) is not delayed once more.

Nothing here imports Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import PROPERTY_KEYS, PROPERTY_TAGS, STATE_OK
from rocketcompat.record.given import NUMBERS, given_in, levels_of_stored
from tubestore.errors import InvalidMessage
from tubestore.spark.kit.intake import (
    Taken,
    TakenColumns,
    as_maps,
    is_attributes,
    is_bytes,
    is_headers,
    is_text,
    without,
)

_T = pa.types
_BYTES = "binary or string"
_HOSTS = {"born_host": "127.0.0.1:0", "store_host": "127.0.0.1:10911"}
_TAKEN = {
    "topic": Taken("topic", is_text, "string"),
    "body": Taken("body", is_bytes, _BYTES),
    "value": Taken("body", is_bytes, _BYTES),
    "queue_id": Taken("queue_id", _T.is_integer, "int"),
    "partition": Taken("queue_id", _T.is_integer, "int"),
    "keys": Taken("keys", is_bytes, "string or binary"),
    "key": Taken("keys", is_bytes, "string or binary"),
    "tags": Taken("tags", is_text, "string"),
    "properties": Taken("properties", is_attributes, "map<string,string>"),
    "headers": Taken("properties", is_headers, "array<struct<key:string,value:binary>>"),
    "born_timestamp": Taken("born_timestamp", _T.is_integer, "bigint"),
    "timestamp": Taken("timestamp", _T.is_timestamp, "timestamp"),
    **{name: Taken(name, _T.is_integer, "int or bigint") for name in NUMBERS},
    **{name: Taken(name, is_text, "string") for name in _HOSTS},
    "state": Taken("state", is_text, "string"),
}


class RocketIntake(TakenColumns):
    """Turns batches of one schema into tables that `put_columns` takes. Picklable."""

    taken = _TAKEN
    given_anew = frozenset(
        {"queue_offset", "physical_offset", "offset", "store_size", "version", "store_timestamp",
         "store_time", "body_crc", "msg_id"}
    )  # fmt: skip
    may_lack = frozenset(("queue_id", "born_timestamp", "timestamp", "state", *_HOSTS))

    def __init__(self, schema: pa.Schema, topic: str | None, queues: int) -> None:
        super().__init__(schema, topic)
        self._queues = queues

    def table(
        self, batch: pa.RecordBatch, first: int = 0, lacking: frozenset[str] | None = None
    ) -> pa.Table:
        """Return the rows as a table of the log's columns; `first` rows came before.

        `lacking` as of `columns_of`.
        """
        found = self.columns_of(batch, lacking)
        _refuse_unreadable(found.pop("state", None))
        if found["body"].null_count:
            raise InvalidMessage("column body: a row has none")
        if "queue_id" not in found:
            turns = np.arange(first, first + batch.num_rows) % self._queues
            found["queue_id"] = pa.array(turns)
        for name in NUMBERS:
            if name in found:
                found[name] = found[name].fill_null(0)
        if "keys" in found:
            found["keys"] = _as_text(found["keys"])
        if "properties" in found:
            names = {"keys": PROPERTY_KEYS, "tags": PROPERTY_TAGS}
            taken = [own for name, own in names.items() if name in found]
            found["properties"] = without(as_maps(found["properties"]), taken)
        timestamp = found.pop("timestamp", None)
        if timestamp is not None and "born_timestamp" not in found:
            found["born_timestamp"] = timestamp.cast(pa.timestamp("ms", "UTC"), safe=False).cast(
                pa.int64()
            )
        if "born_timestamp" in found and found["born_timestamp"].null_count:
            raise InvalidMessage("column born_timestamp (or timestamp): a row has none")
        table = pa.table(found)
        if "properties" not in found:
            return table
        levels = pa.array(levels_of_stored(given_in(table)))
        return table.append_column("delay_level", levels)


def _refuse_unreadable(states: Any) -> None:
    if states is not None and not pc.all(pc.equal(states, STATE_OK)).as_py():
        raise InvalidMessage("column state: a row is not ok, so it is no message")


def _as_text(keys: Any) -> Any:
    try:
        return keys.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column key: a value is not UTF-8: {error}") from error
