"""The stream source of a tube store: its positions as a checkpoint has them, and its lease."""

from __future__ import annotations

from functools import partial

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.shapes import SHAPES
from tubestore.spark.kit.tasks import note
from tubestore.spark.kit.triggers import Json, TriggeredReader
from tubestore.spark.micro_batches import MicroBatches
from tubestore.spark.planning import Plan
from tubestore.spark.positions import Position
from tubestore.spark.reading import Reading


def reading_of(options: ReadOptions, schema: StructType) -> Reading:
    """Return how the splits of a batch or a stream are read."""
    shape = SHAPES[options.shape]
    return Reading(
        shape,
        shape.chosen(to_arrow_schema(schema, timezone="UTC")),
        options.path,
        options.filter,
        options.verify_crc,
        options.fail_on_corrupt,
    )


class TubeBatches:
    """`MicroBatches` with positions as JSON."""

    def __init__(self, options: ReadOptions) -> None:
        self._path, self._batches = options.path, MicroBatches(options, note=note)

    def _position(self, found: Json) -> Position:
        return Position.of_json(found, self._path)

    def initial(self) -> Json:
        """Return where a new query starts."""
        return self._batches.initial().as_json()

    def latest(
        self, start: Json, rows: int | None, size: int | None, least: int | None = None
    ) -> Json:
        """Return the end of the batch that begins at `start`."""
        return self._batches.latest(self._position(start), rows, size, least).as_json()

    def freeze(self) -> None:
        """Go no further than what is there now."""
        self._batches.freeze()

    def report(self) -> Json:
        """Return the end of everything, and how many messages are behind the last batch."""
        return self._batches.report()

    def plan(self, start: Json, end: Json) -> Plan:
        """Plan a batch."""
        return self._batches.plan(self._position(start), self._position(end))

    def close(self) -> None:
        """Give the lease up."""
        self._batches.close()


def stream_reader(options: ReadOptions, schema: StructType) -> TriggeredReader:
    """Return what reads a store as a stream."""
    return TriggeredReader(options, reading_of(options, schema), partial(TubeBatches, options))
