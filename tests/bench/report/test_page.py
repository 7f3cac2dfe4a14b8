"""The report: complete without a network, renders in a browser, and hides no reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from bench.commands import main
from bench.report.charts import by_partitions
from bench.report.results import load, number
from tests.bench.report.cells import CONSTANTS, write
from tests.browser import rendered


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main(["report", str(write(folder / "run.jsonl"))]) == 0
    return folder / "run.html"


@pytest.mark.gate
def test_the_page_needs_nothing_but_itself(made: Path) -> None:
    text = made.read_text()
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!#)[^\"']", text)
    assert not re.findall(r"(?:@import|url\((?!#))", text)
    assert "a &lt;processor&gt;" in text
    assert "writemap &amp; more" in text
    assert "10,000 stores need &lt;33 GB&gt; of buffers" in text
    assert "The machine was not quiet during: append 1 × 1" in text
    assert "<td>1 × 1 ~</td>" in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(svg)
        assert "currentColor" in svg
        assert "#010203" not in svg
    figures = re.findall(r'<figure id="(.*?)"', text)
    assert figures[0] == "figure-0"
    assert "figure-model" in figures
    first = text[text.index("figure-0") : text.index("figure-1")]
    for title in ("Append one by one", "Append one by one, p99", "Read a partition, p99", "Scan"):
        assert f"<h3>{title}</h3>" in first
    assert first.count("<svg") == 8
    for heading in re.findall(r'<a href="#([^"]+)"', text):
        assert f'id="{heading}"' in text


@pytest.mark.gate
def test_a_layout_is_hidden_and_shown_in_every_panel_by_its_key(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "hidden.html"
    click = (
        "<script>const f=document.querySelector('#figure-0');"
        "const off=n=>[...f.querySelectorAll('[data-layout]')]"
        ".filter(e=>getComputedStyle(e).display==='none').map(e=>e.dataset.layout);"
        "const key=f.querySelector('[data-key=lmdb]');key.click();const once=off();key.click();"
        "document.body.dataset.off=[once.length,new Set(once).size,once[0],off().length];"
        "</script></body>"
    )
    page.write_text(made.read_text().replace("</body>", click))
    found = re.search(r'data-off="(\d+),(\d+),(\w+),(\d+)"', rendered(page))
    assert found is not None
    lines, layouts, name, after = found.groups()
    assert int(lines) >= 8, "a line in each panel"
    assert (layouts, name, after) == ("1", "lmdb", "0")


@pytest.mark.gate
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_a_phone_or_a_desktop(
    made: Path, tmp_path: Path, width: int
) -> None:
    page = tmp_path / "wide.html"
    script = (
        "<script>for(const d of document.querySelectorAll('details'))d.open=true;"
        "document.body.dataset.wide=[document.documentElement.scrollWidth,innerWidth];</script>"
        "</body>"
    )
    page.write_text(made.read_text().replace("</body>", script))
    found = re.search(r'data-wide="(\d+),(\d+)"', rendered(page, f"--window-size={width},900"))
    assert found is not None
    assert int(found[1]) <= int(found[2]), found.groups()


@pytest.mark.gate
def test_the_table_of_the_readme_follows_the_first_figure(made: Path) -> None:
    text = made.read_text()
    assert text.index("figure-0") < text.index('id="in-short"') < text.index("figure-1")
    rows = re.findall(r"<tr>(<td>append one by one, 10 partitions</td>.*?)</tr>", text)
    assert len(rows) == 1
    assert rows[0].count("<td>") == 1 + len(CONSTANTS) + 1


@pytest.mark.gate
def test_every_layout_of_the_run_has_a_page_of_its_costs(made: Path) -> None:
    text = made.read_text()
    assert set(re.findall(r'id="cost-([^"]+)"><summary>', text)) == {*CONSTANTS, "tubemq"}
    for layout in CONSTANTS:
        begin = text.index(f'id="cost-{layout}"')
        page = text[begin : text.index("</details>", begin)]
        for part in (
            "open after a kill", "descriptors at most", "Fitted constants", "residual",
            "held back µs", "calls derived", "1,000,000",
        ):  # fmt: skip
            assert part in page, (layout, part)
    begin = text.index('id="cost-tubemq"')
    tubemq = text[begin : text.index("</details>", begin)]
    assert "Nothing is fitted to append (0)" in tubemq
    assert "Fitted constants" not in tubemq


@pytest.mark.gate
def test_the_page_renders_in_a_browser_and_throws_no_error(made: Path) -> None:
    text = rendered(made)
    body = re.search(r"<body([^>]*)>", text)
    assert body is not None
    assert "data-errors" not in body[1]
    assert f'data-ready="{text.count("<svg")}"' in body[1]
    assert text.count("<svg") == 8 + 3 + 4


@pytest.mark.gate
def test_a_table_sorts_by_the_head_that_is_clicked(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "clicked.html"
    click = (
        "<script>const t=[...document.querySelectorAll('table')].pop();"
        "t.querySelectorAll('button')[2].click();"
        "document.body.dataset.sorted=[...t.tBodies[0].rows].map(r=>r.cells[2].dataset.value);"
        "</script></body>"
    )
    page.write_text(made.read_text().replace("</body>", click))
    text = rendered(page)
    found = re.search(r'data-sorted="([^"]*)"', text)
    assert found is not None
    values = [float(value) for value in found[1].split(",")]
    assert len(values) > 10
    assert values == sorted(values, reverse=True)
    assert 'aria-sort="descending"' in text


@pytest.mark.gate
def test_the_markdown_has_a_row_a_cell(made: Path) -> None:
    text = made.with_suffix(".md").read_text()
    assert "| tubemq | 10,000 × 1 | 10,000 stores need <33 GB> of buffers |" in text
    assert text.count("| lmdb | 1,000 × 10 |") == 4


def test_a_figure_has_the_median_and_the_range_of_the_slower_of_equal_places(
    tmp_path: Path,
) -> None:
    report = load(write(tmp_path / "run.jsonl"))
    for series in by_partitions(report, "append", "rate_median"):
        cells = [
            cell
            for cell in report.cells
            if cell["layout"] == series.layout and cell["work"] == "append"
            and cell["topics"] * cell["partitions"] == 10_000
        ]  # fmt: skip
        assert len(cells) == 2
        (point,) = [one for one in series.points if one[0] == 10_000]
        assert point[1] == min(cell["rate_median"] for cell in cells)
        assert point[2] < point[1] < point[3]
        assert [one[0] for one in series.points] == [1, 10, 100, 1000, 10_000, 100_000]


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (None, 0.12345, 12.345, 1234.5)] == [
        "–", "0.123", "12.3", "1,234",
    ]  # fmt: skip
