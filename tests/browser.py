"""Headless Chromium, where it is installed: what a page is after its scripts have run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def rendered(page: Path, *options: str) -> str:
    """Return a page's elements after its scripts have run; skip the test without Chromium."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on PATH (Debian: apt install chromium)")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=5000",
        *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout
