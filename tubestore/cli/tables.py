"""Files of messages as tables for a bulk load: Parquet, Arrow, JSON Lines, CSV.

What is wrong with a file is one sentence: the file, the line or rows, the column, the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tubestore.cli.intake import blocks_of, check_readable, lined_rows_of, table_of
from tubestore.cli.kit.errors import UsageMistake
from tubestore.errors import InvalidMessage, MessageTooLarge

#: How the name of a file to load ends.
SUFFIXES = (".parquet", ".arrow", ".jsonl", ".csv")
#: Types of a CSV file's columns; one that is not named here is unknown to a load.
_CSV_TYPES = {
    "body": pa.large_binary(),
    "topic": pa.string(),
    "partition": pa.int64(),
    "partition_id": pa.int64(),
    "key": pa.string(),
    "filter_item": pa.string(),
    "received_time": pa.timestamp("ms", "UTC"),
    "received_time_ms": pa.int64(),
    "report_address": pa.int64(),
    "msg_id": pa.int64(),
}


def check_files(files: tuple[str, ...] | list[str]) -> None:
    """Raise UsageMistake for a file of a kind that is not known, OSError for an unreadable one."""
    for path in files:
        if not path.endswith(SUFFIXES):
            known = ", ".join(SUFFIXES)
            raise UsageMistake(f"{path}: the name of a file to load ends in one of {known}")
    check_readable(files)


#: How much of an error of Arrow is shown.
_ERROR_SHOWN = 400


def _shortened(text: str) -> str:
    """Return an error's text without the middle of a long value that is in it."""
    half = _ERROR_SHOWN // 2
    return text if len(text) <= _ERROR_SHOWN else f"{text[:half]}…{text[-half:]}"


@contextlib.contextmanager
def blaming(where: str) -> Iterator[None]:
    """Turn what is wrong with input into one sentence that begins with its place."""
    try:
        yield
    except UsageMistake as error:
        text = str(error)
        raise UsageMistake(text if text.startswith(where) else f"{where}: {text}") from error
    except (InvalidMessage, MessageTooLarge) as error:
        raise UsageMistake(f"{where}: {error}") from error
    except (pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UsageMistake(f"{where}: {_shortened(str(error))}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise UsageMistake(f"{where}: {error}") from error  # Arrow's, of damaged files


def tables_of(path: str) -> Iterator[tuple[str, pa.Table]]:
    """Read a file piece by piece: (the place of the piece for errors, the piece)."""
    if path.endswith(".jsonl"):
        for block in blocks_of([path]):
            numbered = lined_rows_of(block, {}, with_topic=True)
            if numbered:
                last = block.first_line + block.lines - 1
                yield (
                    f"{path}, lines {block.first_line} to {last}",
                    table_of([row for _, row in numbered]),
                )
        return
    row = 0
    batches = _batches(path)
    while True:
        with blaming(path):
            batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch])
            table.validate(full=True)  # texts that are no UTF-8, offsets that lead nowhere
        yield f"{path}, rows {row} to {row + batch.num_rows - 1}", table
        row += batch.num_rows


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    if path.endswith(".parquet"):
        import pyarrow.parquet

        yield from pyarrow.parquet.ParquetFile(path).iter_batches()
    elif path.endswith(".csv"):
        import pyarrow.csv

        convert: dict[str, Any] = {
            "column_types": _CSV_TYPES,
            "null_values": [""],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": True,
        }
        options = pyarrow.csv.ConvertOptions(**convert)
        with pyarrow.csv.open_csv(path, convert_options=options) as reader:
            yield from reader
    else:
        with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
