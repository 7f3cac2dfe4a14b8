"""Loggers of both packages, which are silent in a program that configures no logging.

Here and not in the packages' `__init__`: importing `logging` takes longer than all of a package.
"""

from __future__ import annotations

import logging

for _package in ("tubestore", "rocketcompat"):
    # Without a handler Python would print warnings on the standard error.
    logging.getLogger(_package).addHandler(logging.NullHandler())

logger = logging.getLogger
