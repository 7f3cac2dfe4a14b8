"""`rocketcompat`: reads a RocketMQ store while its broker is down (contract: decisions.md D16).

A command reads a directory as it lies, whether it was closed, has crashed or is being written, and
changes no byte, except for those made for it: `recover`, `rebuild`, `import`, `copy`, `follow`
and `promote`, and `repair` and `clean` with `--apply`. numpy and pyarrow are loaded inside the
commands, so that `--help` is quick.
"""

from __future__ import annotations

import typer

from rocketcompat.cli.checking import check
from rocketcompat.cli.checking import demo as _demo
from rocketcompat.cli.cleaning import clean
from rocketcompat.cli.decoding import decode
from rocketcompat.cli.listing import cq, dump, queues
from rocketcompat.cli.looking import checkpoint, index, info, lag
from rocketcompat.cli.mending import rebuild, recover, repair
from rocketcompat.cli.moving import convert, copy, diff, export, import_
from rocketcompat.cli.reading import get, message, offset_by_time, query
from rocketcompat.cli.replicating import follow, promote, serve_ha
from rocketcompat.cli.spark import app as _spark
from rocketcompat.cli.tailing import tail
from tubestore.cli.kit.arguments import add_version
from tubestore.cli.kit.errors import run

app = typer.Typer(
    name="rocketcompat",
    help="Look into the files of a RocketMQ message store, with no broker running.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: three times as quick, and the same in every terminal
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_version(app, "rocketcompat")
_COMMANDS = (
    info, dump, tail, get, query, message, offset_by_time, queues, cq, index, checkpoint, lag,
    decode, check, recover, repair, rebuild, clean, export, import_, copy,
    convert, diff, follow, promote, serve_ha,
)  # fmt: skip
for _command in _COMMANDS:
    app.command(_command.__name__.strip("_").replace("_", "-"))(_command)
app.add_typer(_spark, name="spark")
app.command("demo")(_demo)  # `cli.demo` is the module that does it


def main() -> None:
    """Run the command line and leave the process."""
    run(app, "rocketcompat")
