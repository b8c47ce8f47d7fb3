"""`floodmark log init|append|show|events|forks|reconcile|status|fsck|project|feed|graph`"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import dataset_names, each_once, json_option
from floodmark.cli.output import counted, note, print_json, print_table
from floodmark.errors import Permanent, Retryable, reason_of

if TYPE_CHECKING:
    from floodmark.eventlog import Event, EventLog, Fork, RecordedEvent

CORRUPTION_FOUND = 3


@click.group()
def log() -> None:
    """Work with an event log.

    An event log is a directory, usually a git working tree, with one immutable file per transaction. Two histories
    merge by taking the files of both. It needs no store. PATH is that directory.
    """


path_argument = click.argument("path", type=click.Path(path_type=Path))


@contextlib.contextmanager
def _opened(path: Path, *, read_only: bool = False, create: bool = False) -> Iterator[EventLog]:
    from floodmark.eventlog import EventLog

    with EventLog.open(path, read_only=read_only, create=create) as opened:
        yield opened


@log.command()
@path_argument
@click.option("--hook", is_flag=True, help="Check the log before each git commit.")
@click.option("--new-identity", is_flag=True, help="Give this replica a new identity, after an identity conflict.")
@json_option
def init(path: Path, hook: bool, new_identity: bool, as_json: bool) -> None:
    """Create a log, or add missing git settings to an existing one.

    Writes .gitignore and .gitattributes, or adds missing lines to them, and restores files whose line endings a
    checkout has converted. Running it again changes nothing.

    \b
    Examples:
      floodmark log init ledger --hook
      floodmark log init ledger --new-identity
    """
    from floodmark.eventlog import git

    with _opened(path, create=True) as opened:
        # The attributes first: otherwise git would convert the restored files again.
        added = git.complete(path)
        restored = opened.restore_line_ends()
        hooked = str(git.install_hook(path)) if hook else None
        identity = opened.take_new_identity() if new_identity else opened.replica_id
    if as_json:
        print_json({"path": str(path), "replica_id": identity, "added": added, "restored": restored, "hook": hooked})
        return
    click.echo(f"{path} is an event log; this replica is {identity}.")
    if restored:
        added.append(f"{restored} files with CRLF line endings: restored")
    for line in [*added, *([f"hook: {hooked}"] if hooked else [])]:
        click.echo(f"  {line}")


@log.command()
@path_argument
@click.argument("stream", required=False)
@click.argument("data", required=False)
@click.option("--type", "event_type", default="Event", show_default=True, help="The event's type.")
@click.option(
    "--expect", multiple=True, metavar="[STREAM=]VERSION", help="The version that a stream must have. Can be repeated."
)
@click.option("--events", type=click.File("rb"), help="Events as JSON lines: stream, data, type, metadata.")
@json_option
def append(
    path: Path,
    stream: str | None,
    data: str | None,
    event_type: str,
    expect: tuple[str, ...],
    events: Any,
    as_json: bool,
) -> None:
    """Append one event, or with --events several as one transaction.

    With --expect nothing is written unless the streams are at these versions. It can also name streams that this
    transaction does not write to.

    \b
    Examples:
      floodmark log append ledger account-1 '{"amount": 5}' --type Deposited --expect 6
      floodmark log append ledger --events transfer.jsonl --expect account-1=6 --expect account-2=0
    """
    if (events is None) == (stream is None or data is None):
        raise click.UsageError("Give STREAM and DATA, or --events FILE.")
    from floodmark.eventlog import Event

    wanted = [Event(stream or "", _json(data or "", "DATA"), event_type)] if events is None else _read_events(events)
    with _opened(path) as opened:
        done = opened.append(wanted, _expected(expect, stream))
    if as_json:
        print_json(done)
        return
    versions = ", ".join(f"{name} is at version {version}" for name, version in sorted(done.versions.items()))
    click.echo(f"{done.transaction_id}: {versions}")


def _json(text: str | bytes, what: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Permanent(f"{what} is not JSON: {error}.", hint='Write it like {"amount": 5}, in quotes.') from error


def _read_events(file: Any) -> list[Event]:
    import msgspec

    from floodmark.eventlog import Event

    found = []
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=Event))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Permanent(
                    f"Line {number} is not an event: {error}.",
                    hint='Write {"stream": "account-1", "data": {"amount": 5}}.',
                ) from error
    return found


def _is_number(text: str) -> bool:
    """Whether the text is a version or a number in the log: digits of a 64-bit number."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _expected(given: tuple[str, ...], stream: str | None) -> dict[str, int]:
    expected: list[tuple[str, int]] = []
    for text in given:
        name, equals, version = text.rpartition("=")
        if not _is_number(version) or (not equals and stream is None):
            raise click.UsageError(f"--expect {text}: write STREAM=VERSION, or VERSION for the stream appended to.")
        expected.append((name if equals else stream or "", int(version)))
    return each_once(expected, "'--expect'")


@log.command()
@path_argument
@click.argument("stream", required=False)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events above this version.")
@click.option("--limit", type=click.IntRange(min=1), help="Print at most this many events.")
@json_option
def show(path: Path, stream: str | None, after: int, limit: int | None, as_json: bool) -> None:
    """Print a stream in canonical order; without STREAM, list the streams.

    \b
    Examples:
      floodmark log show ledger
      floodmark log show ledger account-1 --after 6
    """
    with _opened(path, read_only=True) as opened:
        if stream is None:
            streams = dict(opened.streams())
            if as_json:
                print_json(streams)
            else:
                print_table(["stream", "version"], list(streams.items()), grouped=False)
            return
        _print_events(opened.read_stream(stream, after=after, limit=limit), "version", as_json=as_json)


@log.command()
@path_argument
@click.option("--after", metavar="POSITION", help="Only events above this position (or number).")
@click.option("--limit", type=click.IntRange(min=1), help="Print at most this many events.")
@click.option("--prefix", help="Only streams whose name starts with this.")
@click.option("--pattern", help="Only streams that match this glob; * crosses /.")
@click.option("--type", "event_type", help="Only events of this type.")
@json_option
def events(
    path: Path,
    after: str | None,
    limit: int | None,
    prefix: str | None,
    pattern: str | None,
    event_type: str | None,
    as_json: bool,
) -> None:
    """Print events in the order in which this replica first saw them.

    \b
    Examples:
      floodmark log events ledger --prefix account- --limit 10
      floodmark log events ledger --after 00000000-0000-000a-0000-000000000000
    """
    start = int(after) if after is not None and _is_number(after) else after
    with contextlib.suppress(Retryable), _opened(path):
        pass  # number the events of a merge, if writing is possible: read-only, they would have no position
    with _opened(path, read_only=True) as opened:
        found = opened.read_events(start, limit, prefix, pattern=pattern, type=event_type)
    _print_events(found, "seq", as_json=as_json)


def _print_events(found: list[RecordedEvent], number: str, *, as_json: bool) -> None:
    import orjson

    if as_json:
        print_json(found)
        return
    rows = [[getattr(e, number), e.stream, e.type, orjson.dumps(e.data).decode(), e.transaction_id[-8:]] for e in found]
    print_table([number, "stream", "type", "data", "transaction"], rows, grouped=False)


@log.command()
@path_argument
@json_option
def forks(path: Path, as_json: bool) -> None:
    """Print the open forks, with the events of each branch.

    \b
    Example:
      floodmark log forks ledger
    """
    with _opened(path, read_only=True) as opened:
        found = opened.forks()
    if as_json:
        print_json([{"streams": fork.streams, "transactions": fork.transactions, **_as_dict(fork)} for fork in found])
        return
    if not found:
        click.echo("No open forks.")
    for fork in found:
        click.echo(f"{', '.join(fork.streams)} forked at version {fork.base_version}: {fork.reason}")
        for branch in fork.branches:
            click.echo(f"  branch {', '.join(root[-8:] for root in branch.roots)}")
            for event in branch.events:
                click.echo(f"    {event.stream}  {event.type}  {event.data}")


def _as_dict(fork: Fork) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(fork)


@log.command()
@path_argument
@click.option(
    "--resolver", metavar="MODULE:FUNCTION", help="A function that gets the fork and returns events or Unresolvable."
)
@click.option("--accept-all", is_flag=True, help="Accept all branches without changes, and add no events.")
@json_option
def reconcile(path: Path, resolver: str | None, accept_all: bool, as_json: bool) -> None:
    """Resolve the open forks, each with one merge transaction.

    \b
    Examples:
      floodmark log reconcile ledger --resolver bookkeeping:merge_accounts
      floodmark log reconcile ledger --accept-all
    """
    if (resolver is None) != accept_all:
        raise click.UsageError("Give --resolver MODULE:FUNCTION, or --accept-all.")
    decide = _load(resolver) if resolver is not None else (lambda _: [])
    with _opened(path) as opened:
        report = opened.reconcile(decide)
    if as_json:
        print_json({"resolved": report.resolved, "declined": [_as_dict(fork) for fork in report.declined]})
        return
    click.echo(f"{counted(len(report.resolved), 'fork')} resolved, {len(report.declined)} left open.")
    for fork in report.declined:
        click.echo(f"  {', '.join(fork.streams)}: {fork.reason}")


def _load(name: str) -> Any:
    """The object that `package.module:name` names, also from the current directory."""
    import importlib
    import sys

    module, colon, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        if not colon:
            raise AttributeError("it contains no colon")
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module runs its own code when it is imported
        raise Permanent(
            f"{name} cannot be loaded: {type(error).__name__}: {reason_of(error)}.",
            hint="Write package.module:name, importable from the current directory without errors.",
        ) from error
    finally:
        sys.path.pop(0)


@log.command()
@path_argument
@json_option
def status(path: Path, as_json: bool) -> None:
    """Print the counts of the log, its open forks and its problems.

    \b
    Example:
      floodmark log status ledger --json
    """
    with _opened(path, read_only=True) as opened:
        found = opened.status()
    if as_json:
        print_json(found.as_dict())
        return
    click.echo(
        f"{counted(found.transactions, 'transaction')}, {counted(found.events, 'event')} "
        f"in {counted(found.streams, 'stream')}"
    )
    click.echo(f"heads: {', '.join(head[-8:] for head in found.heads) or 'none'}; merges: {found.topology_generation}")
    for fork in found.forks:
        names = ", ".join(dict.fromkeys(part.stream for part in fork.parts))
        click.echo(f"fork on {names} at version {fork.parts[0].base_version}: {fork.reason}")
    for one in found.dangling:
        click.echo(f"dangling: {one.transaction} misses {', '.join(one.missing_parents)}")
    for failure in found.integrity_failures:
        click.echo(f"skipped: {failure.file}: {failure.reason}")
    for conflict in found.identity_conflicts:
        click.echo(f"identity {conflict.replica} has two writers: {' and '.join(conflict.transactions)}")
    if found.not_ingested:
        click.echo(f"{found.not_ingested:,} events have no number yet; the next write assigns one")
    click.echo("clean" if found.is_clean else "problems found")
    for notice in found.notices:
        note(notice)


@log.command()
@path_argument
@json_option
def fsck(path: Path, as_json: bool) -> None:
    """Read every file again and check everything. The exit code is 3 if a problem was found.

    \b
    Example:
      floodmark log fsck ledger
    """
    with _opened(path, read_only=True) as opened:
        report = opened.fsck()
    if as_json:
        print_json(report.as_dict())
    else:
        for problem in report.problems:
            click.echo(f"{'error' if problem.error else 'note'}: {problem.file}: {problem.reason}")
            click.echo(f"  {problem.hint}")
        verdict = "no problems found" if report.ok else "problems found"
        click.echo(f"{counted(report.transactions, 'transaction')}, {counted(report.events, 'event')}: {verdict}.")
    if not report.ok:
        click.get_current_context().exit(CORRUPTION_FOUND)


@log.command()
@path_argument
@click.argument("name", metavar="MODULE:PROJECTION")
@click.option("--target", required=True, metavar="URL", help="The database to write to, as a SQLAlchemy URL.")
@click.option("--retry", is_flag=True, help="Retry the quarantined events instead.")
@click.option("--batch", type=click.IntRange(min=1), default=500, show_default=True, help="Events per transaction.")
@json_option
def project(path: Path, name: str, target: str, retry: bool, batch: int, as_json: bool) -> None:
    """Run a projection over all new events, each exactly once.

    The projection gets a SQLAlchemy connection to the target.

    \b
    Example:
      floodmark log project ledger balances:Balances --target sqlite:///balances.db
    """
    from floodmark.eventlog import Projection, Runner, SqlTarget

    projection = _load(name)
    if not isinstance(projection, Projection):
        raise Permanent(f"{name} is not a projection.", hint="Decorate it with @floodmark.eventlog.projection(name).")
    with _opened(path) as opened:
        runner = Runner(
            opened,
            projection,
            SqlTarget(target),
            batch_events=batch,
            on_progress=lambda step: note(f"{step.done:,} of {step.total:,} events"),
        )
        report = runner.retry_quarantined() if retry else runner.run()
    if as_json:
        print_json(report)
        return
    rebuilt = "; rebuilt from the first event" if report.rebuilt else ""
    click.echo(f"{counted(report.applied, 'event')} applied, {report.quarantined:,} in quarantine{rebuilt}.")


@log.command()
@path_argument
@click.argument("dataset", shell_complete=dataset_names)
@json_option
def feed(path: Path, dataset: str, as_json: bool) -> None:
    """Capture new events of the log into DATASET of the store, each event as one row, exactly once.

    The first run declares the dataset. `floodmark flush` commits the rows.

    \b
    Example:
      floodmark -s shop log feed ledger events
    """
    from floodmark.cli.options import open_store

    with open_store() as store, _opened(path) as opened:
        report = store.feed(dataset, opened)
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"{counted(report.events, 'new event')} captured into {dataset}. "
            f"The log is at position {report.position:,}."
        )


@log.command()
@path_argument
@click.option("--format", "kind", type=click.Choice(["text", "mermaid", "svg"]), default="text", show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Draw only the last N transactions.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
def graph(path: Path, kind: str, limit: int | None, output: Path | None) -> None:
    """Draw the graph of transactions.

    \b
    Examples:
      floodmark log graph ledger --limit 20
      floodmark log graph ledger --format svg --output ledger.svg
    """
    from floodmark.eventlog import graph as pictures

    draw = {"text": pictures.as_text, "mermaid": pictures.as_mermaid, "svg": pictures.as_svg}[kind]
    with _opened(path, read_only=True) as opened:
        picture = draw(opened.history, limit=limit)
    if output is None:
        click.echo(picture, nl=False)
    else:
        output.write_text(picture)
