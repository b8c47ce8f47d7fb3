"""The verbs, without their code: a command's file is imported when the command is called.

So `floodmark --help` costs what click costs, and no command pays for the libraries of another.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Make a new store."),
    "dataset": ("dataset", "Declare datasets and list them."),
    "capture": ("capture", "Store rows from a file or from standard input."),
    "flush": ("flush", "Stamp and commit what was captured."),
    "read": ("read", "Print a dataset's rows, all of them or what is new since a cursor."),
    "sql": ("sql", "Run a SQL query over the datasets."),
    "sink": ("sink", "Add destinations and list them."),
    "export": ("export", "Deliver what is new to the sinks."),
    "backfill": ("backfill", "Load history beside live capture, each row once."),
    "adopt": ("adopt", "Make data without sequence numbers rows of a dataset, once."),
    "audit": ("audit", "Prove that a sink's destination holds every row, each once."),
    "trace": ("trace", "Follow one row from its capture to every sink."),
    "fsck": ("fsck", "Check control database, lake and spool against each other."),
    "torture": ("torture", "Kill processes at random, and see whether every row arrives once."),
    "run": ("run", "Flush and deliver, by itself, until it is stopped."),
    "hub": ("hub", "Take rows over HTTP, from other stores and from any client."),
    "token": ("token", "Decide who may send rows to this store's hub."),
    "provenance": ("provenance", "See which stores forwarded rows have passed through, and correct it."),
    "compact": ("compact", "Join small files, and remove what is no longer needed."),
    "retain": ("retain", "Remove old rows, but none that a sink still needs."),
    "purge": ("purge", "Remove rows that match a condition, for good."),
    "rebuild": ("rebuild", "Bring a dataset into a new table: another layout, another place."),
    "status": ("status", "Show what the store holds and what waits."),
    "quarantine": ("quarantine", "Look at rows that did not fit, and decide about them."),
    "log": ("log", "Work with an event log."),
    "jars": ("jars", "Fetch the Spark jars, once, for offline use."),
    "demo": ("demo", "Run the main job on a scratch store, and check it."),
}
"""Verb → (module in this package, what `--help` says about it). In the order in which one meets them."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for it."""

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
        """List the verbs from the table above, so that help imports none of them."""
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
@click.option("-v", "--verbose", is_flag=True, help="Show Spark's own output as well. It is kept in logs/spark.log.")
@click.version_option(package_name="floodmark", message="floodmark %(version)s")
@click.pass_context
def app(ctx: click.Context, store: Path, verbose: bool) -> None:
    """Every row delivered exactly once, at a cost that follows the new rows.

    Rows go in durably (capture), one commit gives each the next sequence number (flush), and every reader asks
    for what is new since its cursor (read).

    \b
    Examples:
      floodmark -s shop init
      floodmark -s shop dataset add orders --identity order_id --event-time placed_at
      floodmark -s shop capture orders orders.jsonl
      floodmark -s shop flush
      floodmark -s shop read orders --cursor-file orders.cursor

    Data goes to standard output, progress to standard error. Exit codes: 0 done, 1 failed, 2 usage, 3 the store
    contradicts itself.
    """
    ctx.obj = store
    if verbose:
        from floodmark.lake.sparklog import show_spark_output

        show_spark_output()
