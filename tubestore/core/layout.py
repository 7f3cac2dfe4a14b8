"""Record layouts: one table a record, read by the codec, numpy and the documentation.

Always true: a layout is packed and big-endian (a Java `ByteBuffer`); its size
is written by hand and checked against its fields, so an edit that moves a byte
fails at import and not in a reader a year later.

>>> PAIR = Layout("Pair", 12, (Field("key", "i4", "Its key."), Field("time", "i8", "ms.")))
>>> PAIR.pack(key=1, time=2).hex()
'000000010000000000000002'
>>> PAIR.unpack_from(PAIR.pack(key=1, time=2))
Pair(key=1, time=2)
>>> PAIR.position("time")
4
"""

from __future__ import annotations

import struct
from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Buffer = bytes | bytearray | memoryview

_STRUCT_CODES = {"u1": "B", "i2": "h", "i4": "i", "i8": "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its code ("u1", "i2", "i4", "i8", "bN" for N raw bytes), its meaning."""

    name: str
    code: str
    doc: str

    @property
    def struct_code(self) -> str:
        """The field in the language of `struct`."""
        return self.code[1:] + "s" if self.code[0] == "b" else _STRUCT_CODES[self.code]

    @property
    def numpy_code(self) -> str:
        """The field in the language of numpy; V and not S, which drops trailing zero bytes."""
        return "V" + self.code[1:] if self.code[0] == "b" else ">" + self.code

    @property
    def size(self) -> int:
        """Bytes that the field takes."""
        return struct.calcsize(">" + self.struct_code)


def _named_tuple(name: str, fields: tuple[Field, ...]) -> Any:
    return namedtuple(name, [f.name for f in fields])


class Layout:
    """The fixed fields of a record, in order, without gaps."""

    def __init__(self, name: str, size: int, fields: tuple[Field, ...]) -> None:
        self.name, self.size, self.fields = name, size, fields
        self.struct = struct.Struct(">" + "".join(f.struct_code for f in fields))
        self.row: Any = _named_tuple(name, fields)
        if self.struct.size != size:
            raise TypeError(f"{name}: its fields take {self.struct.size} bytes, not {size}")

    def pack(self, **values: int | bytes) -> bytes:
        """Encode one record; a missing or unknown field is a TypeError."""
        return self.struct.pack(*self.row(**values))

    def unpack_from(self, buffer: Buffer, position: int = 0) -> Any:
        """Decode the record at `position` into a named tuple."""
        return self.row._make(self.struct.unpack_from(buffer, position))

    def position(self, field: str) -> int:
        """Return where `field` starts, in bytes from the start of the record."""
        return int(self.dtype.fields[field][1])  # type: ignore[index]

    def slice(self, field: str) -> slice:
        """Return the slice of the record that holds `field`."""
        start = self.position(field)
        return slice(start, start + next(f.size for f in self.fields if f.name == field))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The record as a packed numpy dtype."""
        import numpy as np

        return np.dtype([(f.name, f.numpy_code) for f in self.fields])

    def markdown(self) -> str:
        """Return the table for FORMAT.md."""
        rows, byte = ["| byte | size | field | meaning |", "| ---: | ---: | --- | --- |"], 0
        for field in self.fields:
            rows.append(f"| {byte} | {field.size} | `{field.name}` | {field.doc} |")
            byte += field.size
        return "\n".join(rows)
