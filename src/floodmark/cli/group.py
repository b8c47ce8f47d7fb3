"""The list of commands, without their code: a command's file is imported when the command is called.

So `floodmark --help` is fast, and no command imports the libraries of another.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Create a new store."),
    "attach": ("attach", "Use an existing store from this host, too."),
    "dataset": ("dataset", "Declare datasets and list them."),
    "capture": ("capture", "Store rows from a file or from standard input."),
    "flush": ("flush", "Commit captured rows."),
    "read": ("read", "Print a dataset's rows: all, or those that are new since a cursor."),
    "sql": ("sql", "Run a SQL query over the datasets."),
    "sink": ("sink", "Add, list and change destinations."),
    "export": ("export", "Deliver new rows to the sinks."),
    "backfill": ("backfill", "Load history into a dataset, each row exactly once."),
    "adopt": ("adopt", "Import existing data, without sequence numbers, into a dataset."),
    "audit": ("audit", "Check that a sink's destination has every row exactly once."),
    "trace": ("trace", "Show where one row is, from its capture to every sink."),
    "fsck": ("fsck", "Check that control database, lake and spool are consistent."),
    "torture": ("torture", "Kill processes at random and check that every row arrives exactly once."),
    "run": ("run", "Flush and deliver continuously, until stopped."),
    "hub": ("hub", "Receive rows over HTTP, from other stores and from any client."),
    "token": ("token", "Manage the tokens of clients that send rows to this store's hub."),
    "provenance": ("provenance", "Show and correct which stores forwarded rows have passed through."),
    "compact": ("compact", "Compact small data files, and remove unused files."),
    "retain": ("retain", "Remove old rows that every sink has received."),
    "purge": ("purge", "Remove rows that match a condition permanently."),
    "rebuild": ("rebuild", "Copy a dataset into a new table with another layout or location."),
    "move": ("move", "Move the control database to PostgreSQL, or back."),
    "backup": ("backup", "Copy control database, spool and settings while the store is in use."),
    "restore": ("restore", "Create a store from a backup."),
    "doctor": ("doctor", "Check this machine and the store, and say what to do."),
    "config": ("config", "Show the settings and check them."),
    "status": ("status", "Show committed rows, waiting rows and the state of each sink."),
    "quarantine": ("quarantine", "Inspect, replay or discard rows that did not fit."),
    "log": ("log", "Work with an event log."),
    "jars": ("jars", "Download the Spark jars, once, for offline use."),
    "completion": ("completion", "Print the completion script of a shell."),
    "demo": ("demo", "Run the complete pipeline on a scratch store, and check the result."),
}
"""Command → (module in this package, one line of help), in the order of `--help`."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name in COMMANDS if _exists(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS or not _exists(cmd_name):
            return None
        module = import_module(f"floodmark.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"floodmark.cli.{COMMANDS[cmd_name][0]}.{cmd_name} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above, so that help imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _exists(name: str) -> bool:
    return find_spec(f"floodmark.cli.{COMMANDS[name][0]}") is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "-s",
    "--store",
    type=click.Path(path_type=Path),
    envvar="FLOODMARK_STORE",
    default=Path(),
    show_default="the current directory",
    show_envvar=True,
    help="The store's directory, or the floodmark.toml in it.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show Spark's own output. It is always written to logs/spark.log."
)
@click.version_option(package_name="floodmark", message="floodmark %(version)s")
@click.pass_context
def app(ctx: click.Context, store: Path, verbose: bool) -> None:
    """Deliver every row exactly once, with work proportional to new rows, not table size.

    `capture` stores rows durably, `flush` commits them and gives each row the next sequence number, and `read` returns
    the rows that are new since a cursor.

    \b
    Examples:
      floodmark -s shop init
      floodmark -s shop dataset add orders --identity order_id --event-time placed_at
      floodmark -s shop capture orders orders.jsonl
      floodmark -s shop flush
      floodmark -s shop read orders --cursor-file orders.cursor

    Data goes to standard output, progress to standard error. Exit codes: 0 done, 1 failed, 2 usage, 3 corruption found.
    """
    ctx.obj = store
    if verbose:
        from floodmark.lake.sparklog import show_spark_output

        show_spark_output()
