"""Staged files are named where they are not what was staged."""

from __future__ import annotations

import pytest

from tests.support.rocket.publishing import (
    ROOT,
    opened,
)
from tests.support.rocket.publishing import vfs as vfs
from tests.support.rocket.store.job_trouble import half_published
from tubestore.errors import NotAStore
from tubestore.testing import MemoryVfs


def test_a_job_whose_staged_files_are_gone_is_named(vfs: MemoryVfs) -> None:
    inner, _ = half_published(60)
    staging = f"{ROOT}/.tubestore/staging/job-j"
    inner.remove(f"{staging}/at-{4096:020d}")
    with pytest.raises(NotAStore, match="is gone"):
        opened(inner)
