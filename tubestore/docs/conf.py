"""Settings of Sphinx for the site: `make docs` builds it from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

project = "tubestore"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "tubestore/docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "bench/*.md",
    "rocketcompat/docs/*.md",
    "tubestore/docs/*.md",
    "tubestore/spark/README.md",
]
html_theme = "alabaster"
html_theme_options = {
    "description": "Logs in TubeMQ's and RocketMQ's files",
    "fixed_sidebar": True,
    "page_width": "76rem",
    "body_max_width": "54rem",
    "sidebar_width": "16rem",
}
html_copy_source = False
html_show_copyright = False
#: A name in single backticks, in docstrings too, is code.
default_role = "code"
#: The site needs no other extra than its own.
autodoc_mock_imports = ["prometheus_client", "pyparsing"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_heading_anchors = 4
#: A docstring is plain text first: a backtick amiss in one is no reason to have no site.
suppress_warnings = ["docutils"]
highlight_language = "text"


def first_page(app: Sphinx, error: Exception | None) -> None:
    """Write `index.html` at the root of the site, which goes to the first page."""
    if error is None:
        target = f"{root_doc}.html"
        page = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}">'
        Path(app.outdir, "index.html").write_text(f'{page}<a href="{target}">{project}</a>\n')


def setup(app: Sphinx) -> None:
    """Connect what the settings cannot express."""
    app.connect("build-finished", first_page)
