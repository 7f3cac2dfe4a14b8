"""The site: it is built without a warning, needs no network, and a browser shows its drawings."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import rocketcompat
import tubestore
from tests.browser import rendered
from tests.support import REPOSITORY

pytest.importorskip("sphinx", reason="Sphinx is not installed (the extra docs)")
pytest.importorskip("myst_parser", reason="MyST is not installed (the extra docs)")
pytestmark = pytest.mark.gate

DRAWINGS = sorted((REPOSITORY / "tubestore/docs").glob("*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, with warnings as errors."""
    made = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going",
        "--conf-dir", "tubestore/docs", "--doctree-dir", f"{made}/doctrees", ".", f"{made}/html",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return made / "html"


def test_the_site_needs_no_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]*)"', text)
        assert loaded == [], page


@pytest.mark.parametrize("package", [tubestore, rocketcompat])
def test_every_public_name_is_in_the_reference(site: Path, package: object) -> None:
    name = package.__name__  # type: ignore[attr-defined]
    text = (site / name / "docs" / "api.html").read_text()
    described = set(re.findall(rf'id="{name}\.(\w+)"', text))
    assert set(package.__all__) - described == set()  # type: ignore[attr-defined]


def test_the_drawings_are_valid_and_load_nothing() -> None:
    assert len(DRAWINGS) >= 3
    for drawing in DRAWINGS:
        assert ET.parse(drawing).getroot().get("viewBox"), drawing
        assert "href" not in drawing.read_text()


@pytest.mark.parametrize("page", ["concepts", "tutorial", "api"])
def test_a_browser_shows_a_page_with_its_drawings_and_nothing_wider_than_it(
    site: Path, page: str
) -> None:
    place = site / "tubestore" / "docs" / f"{page}.html"
    script = (
        "<script>addEventListener('load',()=>{const d=document.body.dataset;"
        "d.images=[...document.images].map(i=>i.naturalWidth>0);"
        "d.wide=document.documentElement.scrollWidth-document.documentElement.clientWidth;"
        "d.head=document.querySelector('h1').textContent})</script></body>"
    )
    looked = place.with_name(f"{page}-looked.html")
    looked.write_text(place.read_text().replace("</body>", script))
    text = rendered(looked, "--window-size=1280,900")
    assert 'data-head="' in text
    assert re.search(r'data-wide="(-?\d+)"', text)[1] == "0"  # type: ignore[index]
    images = re.search(r'data-images="([^"]*)"', text)[1]  # type: ignore[index]
    assert "false" not in images
    assert images.count("true") >= (2 if page == "concepts" else 0)


def test_the_first_page_is_found_from_the_root(site: Path) -> None:
    target = re.search(r'href="([^"]+)"', (site / "index.html").read_text())
    assert target is not None
    assert (site / target[1]).exists()
