"""Layouts: one table a record gives struct, numpy, positions and documentation."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.core.layout import Field, Layout
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY

LAYOUTS = [DATA_HEADER, INDEX_ENTRY]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda e: e.name)
ODD = Layout(
    "Odd",
    18,
    (
        Field("a", "u1", ""),
        Field("b", "b7", ""),
        Field("c", "i2", ""),
        Field("d", "i8", ""),
    ),
)


def test_a_size_that_does_not_fit_its_fields_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="Wrong: its fields take 4 bytes, not 5"):
        Layout("Wrong", 5, (Field("a", "i4", ""),))


def test_raw_bytes_keep_their_trailing_zeros() -> None:
    raw = ODD.pack(a=1, b=b"ab\0\0\0\0\0", c=-1, d=5)
    assert ODD.unpack_from(raw).b == b"ab\0\0\0\0\0"
    import numpy as np

    assert np.frombuffer(raw, ODD.dtype)[0]["b"].tobytes() == b"ab\0\0\0\0\0"


@pytest.mark.parametrize("layout", [*LAYOUTS, ODD], ids=lambda e: e.name)
def test_struct_and_numpy_agree_on_size_and_positions(layout: Layout) -> None:
    assert layout.dtype.itemsize == layout.size == layout.struct.size
    at = 0
    for field in layout.fields:
        assert layout.position(field.name) == at
        at += field.size
    assert at == layout.size


def values_of(layout: Layout) -> st.SearchStrategy[dict[str, int]]:
    bits = {"i2": 16, "i4": 32, "i8": 64}
    return st.fixed_dictionaries(
        {
            f.name: st.integers(-(1 << bits[f.code] - 1), (1 << bits[f.code] - 1) - 1)
            for f in layout.fields
        }
    )


@each_layout
@given(data=st.data())
def test_what_struct_packs_numpy_reads_and_back(layout: Layout, data: st.DataObject) -> None:
    import numpy as np

    values = data.draw(values_of(layout))
    raw = layout.pack(**values)
    assert layout.unpack_from(b"??" + raw, 2)._asdict() == values
    row = np.frombuffer(raw, layout.dtype)[0]
    assert {name: int(row[name]) for name in values} == values
    assert np.array([tuple(layout.row(**values))], layout.dtype).tobytes() == raw


@each_layout
def test_a_missing_or_unknown_field_is_refused(layout: Layout) -> None:
    values = {f.name: 0 for f in layout.fields}
    first = layout.fields[0].name
    with pytest.raises(TypeError):
        layout.pack(**{k: v for k, v in values.items() if k != first})
    with pytest.raises(TypeError):
        layout.pack(**values, more=1)


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(struct.error):
        INDEX_ENTRY.pack(
            partition_id=1 << 31, data_offset=0, data_size=0, key_code=0, received_time=0
        )


@each_layout
def test_the_table_of_the_documentation_has_a_line_a_field(layout: Layout) -> None:
    lines = layout.markdown().splitlines()
    assert len(lines) == 2 + len(layout.fields)
    for line, field in zip(lines[2:], layout.fields, strict=True):
        assert f"| {layout.position(field.name)} | {field.size} | `{field.name}` |" in line
        assert field.doc
