"""Runs pytest again and again in forks of a process that has imported what it needs.

A line of JSON on standard input is pytest's arguments and the seconds that it may take; the answer
is a line with its exit code (None if it took longer) and what it printed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time

#: Nothing of the packages that are tested, nor of their tests.
IMPORTED = ("numpy", "pyarrow.compute", "pyarrow.parquet", "pytest", "typing_extensions",
            "rich.console", "typer.testing", "sortedcontainers", "xxhash", "isal.isal_zlib",
            "javaproperties", "json5", "concurrent.futures", "multiprocessing")  # fmt: skip


def run(arguments: list[str], timeout: float) -> tuple[int | None, str]:
    """Run pytest in a fork; returns its exit code, None if it took too long, and its output."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = int(importlib.import_module("pytest").main(arguments))
            finally:
                sys.stdout.flush()
                os._exit(code)
        ended, deadline = 0, time.monotonic() + timeout
        while ended == 0 and time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if ended == 0:
            os.killpg(child, signal.SIGKILL)  # with what the tests started
            os.waitpid(child, 0)
        output.seek(0)
        return (os.waitstatus_to_exitcode(status) if ended else None), output.read()


def main() -> None:
    """Answer until standard input ends."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
