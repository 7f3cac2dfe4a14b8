"""The command lines: `tubestore` here, and what `rocketcompat` shares with it.

| module | what |
| --- | --- |
| `app` | the commands of `tubestore`, their arguments and options |
| `topic_commands` | … and those about topics and retention |
| `write`, `read`, `inspect`, `topics`, `retention` | what the commands do; loaded when they run |
| `intake` | what `append` reads: lines, JSON Lines |
| `demo/` | `tubestore demo` |
| `spark` | `tubestore spark JOB` |
| `kit/` | what both command lines share: options, output, errors |

Nothing here loads numpy or pyarrow before a command needs it, so that `--help` is quick.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run `tubestore` and leave the process with the contract's exit code."""
    from tubestore.cli.app import app
    from tubestore.cli.kit.errors import run

    run(app, "tubestore")
