"""FORMAT.md shows the tables that the code reads.

`python -m tests.compat.test_format_pages` writes them.
"""

from __future__ import annotations

import importlib
import re

import pytest

from tests.support import REPOSITORY
from tubestore.core.layout import Layout

ROOT = REPOSITORY
PAGES = ("tubestore/docs/FORMAT.md", "rocketcompat/docs/FORMAT.md")
_TABLE = re.compile(
    r"(<!-- table: (?P<module>[\w.]+)\.(?P<name>\w+)(?:\[(?P<place>\d)\])? -->\n)"
    r".*?(?=<!-- end -->)",
    re.DOTALL,
)


def layout_of(module: str, name: str, place: str | None) -> Layout:
    found = getattr(importlib.import_module(module), name)
    layout = found if place is None else found[int(place)]
    assert isinstance(layout, Layout)
    return layout


def render(text: str) -> str:
    return _TABLE.sub(
        lambda m: m[1] + layout_of(m["module"], m["name"], m["place"]).markdown() + "\n", text
    )


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_the_tables_as_they_are_declared(page: str) -> None:
    text = (ROOT / page).read_text()
    assert _TABLE.search(text)
    assert render(text) == text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(render(path.read_text()))
