"""The way in and the way out: whatever happens in a command ends as one sentence and one exit code.

| code | meaning                                                      |
|------|--------------------------------------------------------------|
| 0    | done                                                         |
| 1    | failed, or done in part (a line that was no row)              |
| 2    | the command was not written correctly; nothing was tried     |
| 3    | stored state contradicts itself (`Corrupt`): stop and look   |
| 130  | interrupted from the keyboard                                |
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from floodmark.cli.group import app
from floodmark.errors import Corrupt, FloodmarkError, Retryable

FAILED, USAGE, CORRUPT, INTERRUPTED = 1, 2, 3, 130

TRACEBACK_VARIABLE = "FLOODMARK_TRACEBACK"


def main() -> None:
    """Run the program on the process's own arguments."""
    sys.exit(run(sys.argv[1:]))


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
    """A path that is too long, a disk that is full, a right that is missing: nobody's mistake in the code."""
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
    """Whoever read our output has gone (`| head`). Not all of it was delivered, so this is no success."""
    # Python flushes stdout once more on its way out; without this it would complain there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
