"""Entry point: every outcome of a command ends as one message and one exit code.

| code | meaning                                                      |
|------|--------------------------------------------------------------|
| 0    | done                                                         |
| 1    | failed, or done in part (a line that is not a row)           |
| 2    | wrong usage; nothing was done                                |
| 3    | stored state contradicts itself (`Corrupt`)                  |
| 130  | interrupted: Ctrl-C, or a second signal to `run` or `hub`    |
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from floodmark.cli.group import app
from floodmark.errors import Corrupt, FloodmarkError, Retryable
from floodmark.signals import INTERRUPTED

FAILED, USAGE, CORRUPT = 1, 2, 3

TRACEBACK_VARIABLE = "FLOODMARK_TRACEBACK"


def main() -> None:
    """Run the program on the process's own arguments."""
    # What is imported stays: to look through it for garbage every few hundred objects is a tenth of a short command.
    gc.set_threshold(50_000)
    _leave(run(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    """Exit. Where nothing of this process is left to be ended, leave its memory to the system: to take every module
    apart is a tenth of a short command.
    """
    if threading.active_count() == 1 and "pyspark" not in sys.modules:
        atexit._run_exitfuncs()  # noqa: SLF001 - all that a normal exit would do beside that
        with contextlib.suppress(OSError, ValueError):  # a closed output was reported by the command
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        code = app.main(args=list(arguments), prog_name="floodmark", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted. All acknowledged rows are safe.", err=True)
        return INTERRUPTED
    except FloodmarkError as error:
        return _report(error)
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence, never a page of code
        return _report_unexpected(error)
    return code if isinstance(code, int) else 0


def _report(error: FloodmarkError) -> int:
    _trace(error)
    click.echo(f"Error: {error.message}", err=True)
    if error.hint:
        click.echo(f"Try:   {error.hint}", err=True)
    return CORRUPT if isinstance(error, Corrupt) else FAILED


def _refused_by_the_system(error: OSError) -> FloodmarkError:
    """An operating system error: a path that is too long, a full disk, a missing permission."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)[:200]}: "
    return Retryable(
        f"{where}{error.strerror or error}.",
        hint="All acknowledged rows are safe. Correct the path, or free space, then run the command again.",
    )


def _report_unexpected(error: Exception) -> int:
    if isinstance(error, OSError):
        return _report(_refused_by_the_system(error))
    traced = _trace(error)
    lines = str(error).strip().splitlines()
    detail = f": {lines[0][:300]}" if lines else ""
    click.echo(f"Error: Unexpected failure ({type(error).__name__}{detail}).", err=True)
    if not traced:
        click.echo(f"Try:   Run the command again with {TRACEBACK_VARIABLE}=1 and report the traceback.", err=True)
    return FAILED


def _trace(error: BaseException) -> bool:
    if not os.environ.get(TRACEBACK_VARIABLE):
        return False
    traceback.print_exception(error)
    return True


def _reader_left() -> int:
    """The reader of standard output has closed the pipe (`| head`). The output is incomplete, so this is a failure."""
    # Python flushes stdout again at exit; without this it would print an error there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
