"""How a command ends: one exit code, at most one line, never a traceback for a user's mistake.

Shared by `tubestore` and `rocketcompat`. The codes are a contract (decisions.md D16):

| code | meaning |
| ---: | --- |
| 0 | done |
| 1 | findings that were not accepted (`check`); not found (`get`, `query`, any name) |
| 2 | wrong usage |
| 3 | refused: locked, missing, will not open, or something in the store that cannot be read |
| 4 | an error of this program: one line, and the traceback in a file |
| 130 | interrupted |

A reader that closes the pipe early (`| head`) has what it wanted: that ends quietly with 0.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from tubestore.errors import (
    InvalidMessage,
    InvalidName,
    InvalidOption,
    MessageTooLarge,
    StoreLocked,
    TubeStoreError,
    UnknownTopic,
    listed,
)
from tubestore.values import UsageMistake as UsageMistake

EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_NOT_FOUND = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERNAL = 4
EXIT_INTERRUPTED = 130

#: What the user gave cannot be used; everything else that we raise by design is a refusal.
_USAGE = (InvalidMessage, InvalidName, InvalidOption, MessageTooLarge)


class NotThere(Exception):
    """What an option names is not in the store; the text lists what there is.

    It begins with the name that is nearest to the `wanted` one. Without `names` it lists nothing.
    """

    def __init__(
        self, what: str, names: Iterable[str] | None = None, wanted: str | None = None
    ) -> None:
        if names is None:
            super().__init__(f"no {what}")
            return
        there, hint = list(names), ""
        if wanted is not None:
            import difflib

            near = difflib.get_close_matches(wanted, there, 1)
            hint = f" did you mean {near[0]!r}?" if near else ""
        super().__init__(f"no {what};{hint} there are: {listed(there) or 'none'}")


class Leave(Exception):
    """End the command with an exit code; the work is done and nothing more is printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(app: Callable[..., Any], name: str) -> NoReturn:
    """Run a typer app as the program `name` and leave the process with the contract's code."""
    _open_closed_streams()
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a letter: "?"
            sys.stdout.reconfigure(errors="replace")
        with warnings.catch_warnings():
            warnings.showwarning = partial(_print_warning, name)
            code = _call(app, name)
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_DONE
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:  # stdout takes no more: a full disk, or it was closed
        code = _leave_with(name, f"stdout: {_os_error(error)}", EXIT_REFUSED)
    _close_stdout()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give a process that was started with closed streams some: a store's file would be one.

    What is written to a stdout that was closed is an error, as it is for other programs.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            stream = os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")
            setattr(sys, name, stream)


def _call(app: Callable[..., Any], name: str) -> int:
    """Call the app; turn what it raises into an exit code and a line on stderr."""
    stdout = sys.stdout
    try:
        result = app(prog_name=name, standalone_mode=False)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except SystemExit:
        if sys.stdout is stdout:
            raise
        # typer takes a closed pipe for a failure: it covers stdout and leaves with 1.
        sys.stdout = stdout
        raise BrokenPipeError from None
    except Leave as leave:
        return leave.code
    except UsageMistake as mistake:
        return _leave_with(name, str(mistake), EXIT_USAGE)
    except (UnknownTopic, NotThere) as error:
        return _leave_with(name, str(error), EXIT_NOT_FOUND)
    except _USAGE as error:
        return _leave_with(name, str(error), EXIT_USAGE)
    except StoreLocked as error:
        by = f" by {error.holder}" if error.holder else ""
        return _leave_with(
            name, f"{error.directory}: locked{by}: another process writes to it", EXIT_REFUSED
        )
    except TubeStoreError as error:
        return _leave_with(name, str(error), EXIT_REFUSED)
    except OSError as error:
        return _leave_with(name, _os_error(error), EXIT_REFUSED)
    except Exception as error:
        return _typer_or_internal(name, error)
    return result if isinstance(result, int) else EXIT_DONE


def _typer_or_internal(name: str, error: Exception) -> int:
    """Handle typer's own exceptions, which it has moved between versions; else it is our bug."""
    kind = {base.__name__ for base in type(error).__mro__}
    if "Exit" in kind:
        return int(getattr(error, "exit_code", EXIT_DONE))
    if "Abort" in kind:
        return EXIT_INTERRUPTED
    if "NoArgsIsHelpError" in kind:
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]  # the help
        return EXIT_USAGE
    if "ClickException" in kind:
        text = error.format_message()  # type: ignore[attr-defined]
        return _leave_with(
            name, text.replace(": Value error, ", ": ") + _where_help_is(error), EXIT_USAGE
        )
    return _leave_with(
        name, f"internal error: {error!r} (traceback in {_save_traceback()})", EXIT_INTERNAL
    )


def _where_help_is(error: Exception) -> str:
    """Return what to type for the options of the command that was used wrongly."""
    context = getattr(error, "ctx", None)
    return f" (see: {context.command_path} --help)" if context is not None else ""


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped: those of a store act on no terminal.

    >>> printable("red\x1b[31m\n")
    'red\\x1b[31m\\n'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_warning(name: str, message: Warning | str, *_: object) -> None:
    """Print a warning as a line, without its place in the code."""
    print(f"{name}: {printable(str(message))}", file=sys.stderr)


def _leave_with(name: str, text: str, code: int) -> int:
    """Print one line on stderr."""
    line = printable(" ".join(text.split()))
    print(f"{name}: {line}", file=sys.stderr)
    return code


def _os_error(error: OSError) -> str:
    """Return "path: reason" of an error of the operating system."""
    reason = error.strerror or repr(error)
    if isinstance(error, PermissionError) and error.filename:
        reason += _whose(error.filename)
    return f"{error.filename}: {reason}" if error.filename else reason


def _whose(path: str) -> str:
    """Return the user of this process and the owner of a file, if they can be seen."""
    text = f" to user {_user(os.geteuid())}"
    with contextlib.suppress(OSError):
        text += f"; it belongs to {_user(os.stat(path).st_uid)}"
    return text


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _save_traceback() -> str:
    """Write the current traceback to a file of its own and return the path."""
    handle, path = tempfile.mkstemp(prefix="tubestore-", suffix=".traceback")
    with os.fdopen(handle, "w") as file:
        traceback.print_exc(file=file)
    return path


def _close_stdout() -> None:
    """Flush, or drop what a closed pipe will not take, so that the interpreter's exit is quiet."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
