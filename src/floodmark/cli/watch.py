"""`floodmark status --watch`: the dashboard's first page in a terminal, and plain lines where there is none."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.output import cell_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from floodmark.dashboard.views import SinkView
    from floodmark.dashboard.watch import Reading, Sample, Watch
    from floodmark.store import Store

BARS = "▁▂▃▄▅▆▇█"
TREND_WIDTH = 16
QUIT = frozenset("qQ\x03\x1b")


def watch_status(store: Store, *, seconds: float, count: int | None, as_json: bool) -> None:
    """Show the status again and again: until `q`, Ctrl-C, or so many times."""
    from floodmark.dashboard.watch import Watch

    watch = Watch(store.engine)
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and not as_json:
            _show(watch, seconds=seconds, count=count)
        else:
            for reading in _readings(watch, seconds=seconds, count=count):
                _print_json(reading) if as_json else _print_line(watch, reading)


def _readings(watch: Watch, *, seconds: float, count: int | None) -> Iterator[Reading]:
    done = 0
    while True:
        watch.sample()
        yield watch.now()
        done += 1
        if done == count:
            return
        time.sleep(seconds)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _print_json(reading: Reading) -> None:
    import msgspec

    click.echo(msgspec.json.encode(reading.status))


def _print_line(watch: Watch, reading: Reading) -> None:
    from floodmark.dashboard import views, words

    settings = watch.engine.settings.run
    found = views.attentions(reading, settings)
    parts = [f"{reading.at:%Y-%m-%dT%H:%M:%SZ} {views.verdict(reading, found)}"]
    for item in reading.status.datasets:
        waiting = item.spool.segment_bytes + item.spool.landing_bytes
        parts.append(f"dataset {item.name}: {words.rows(item.rows)}, {words.size(waiting)} waiting.")
    for sink in reading.status.sinks:
        behind = words.duration(views.seconds_behind(sink, reading.at))
        parts.append(f"sink {sink.name}: {words.state(sink)}, {words.rows(sink.lag)} behind, {behind}.")
    parts += [f"{one.subject}: {one.text}" for one in found if one.level == "bad"]
    click.echo(" ".join(cell_text(part) for part in parts))


# ── a terminal ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _show(watch: Watch, *, seconds: float, count: int | None) -> None:
    from rich.live import Live

    done = 0
    with _keys() as pressed, Live(screen=True, auto_refresh=False) as live:
        while True:
            watch.sample()
            live.update(screen_of(watch, watch.now()), refresh=True)
            done += 1
            if done == count or pressed(seconds):
                return


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yields a function that waits so long for `q`. Where standard input is no terminal, it only waits."""
    if not sys.stdin.isatty():

        def only_wait(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield only_wait
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in QUIT:
                return True
        return False

    try:
        tty.setcbreak(sys.stdin.fileno())
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def screen_of(watch: Watch, reading: Reading) -> RenderableType:
    """Everything at a glance, as one screen."""
    from rich.console import Group
    from rich.text import Text

    from floodmark.dashboard import views

    found = views.attentions(reading, watch.engine.settings.run)
    bad = any(one.level == "bad" for one in found)
    parts: list[RenderableType] = [
        Text(views.verdict(reading, found), style="bold red" if bad else "bold cyan"),
        Text(f"{reading.status.store} · {reading.at:%H:%M:%S} UTC · q quits", style="dim"),
        Text(),
    ]
    for one in found[:8]:
        command = f"  {one.command}" if one.command else ""
        style = "red" if one.level == "bad" else ""
        parts.append(Text(cell_text(f"{one.subject}  {one.text}{command}"), style=style))
    parts += [Text()] if found else []
    sinks = [views.sink_view(sink, reading.at, watch.samples()) for sink in reading.status.sinks]
    if sinks:
        parts.append(_sinks(sinks, watch, reading))
    parts.append(_datasets(watch, reading))
    return Group(*parts)


def _sinks(sinks: Sequence[SinkView], watch: Watch, reading: Reading) -> RenderableType:
    from floodmark.dashboard import words

    rows = []
    for view in sinks:
        sink = view.sink
        lags = [float(one.lag_rows[sink.name]) for one in watch.samples() if sink.name in one.lag_rows]
        retry = words.until(view.retry_at, reading.at) if view.retry_at else ""
        rows.append(
            [
                sink.name,
                view.state,
                words.duration(view.behind_seconds) if sink.lag else "0 s",
                words.count(sink.lag),
                trend_bars(lags),
                words.ago(sink.delivered_at, reading.at),
                f"{view.waits_for} {retry}".strip(),
            ]
        )
    return _table(["sink", "state", "behind", "rows behind", "trend", "last delivery", "waits for"], rows, {2, 3})


def _rate(watch: Watch, dataset: str, figures: Callable[[Sample], Mapping[str, float]]) -> float | None:
    return watch.rate(lambda one: figures(one).get(dataset))


def _datasets(watch: Watch, reading: Reading) -> RenderableType:
    from floodmark.dashboard import words

    rows = []
    for item in reading.status.datasets:
        name, table = item.name, reading.tables.get(item.name)
        captured = _rate(watch, name, lambda one: one.captured)
        committed = _rate(watch, name, lambda one: one.committed)
        waiting = item.spool.segment_bytes + item.spool.landing_bytes
        oldest = None if item.spool.since is None else (reading.at - item.spool.since).total_seconds()
        rows.append(
            [
                name,
                words.count(item.rows),
                f"{words.rate(captured)} → {words.rate(committed)}",
                words.size(waiting) if waiting else "-",
                words.duration(oldest) or "-",
                words.ago(item.committed_at, reading.at),
                words.count(item.horizon),
                "-" if table is None else f"{table.files:,} / {table.snapshots:,}",
            ]
        )
    headers = [
        "dataset",
        "rows",
        "captured → committed",
        "waiting",
        "oldest",
        "last commit",
        "horizon",
        "files / snapshots",
    ]
    return _table(headers, rows, {1, 3, 4, 6, 7})


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index in right else "left", overflow="fold")
    styles = {"blocked": "red", "retrying": "red", "up to date": "cyan"}
    for row in rows:
        table.add_row(*[Text(cell_text(cell), style=styles.get(cell, "")) for cell in row])
    return table


def trend_bars(values: Sequence[float]) -> str:
    """The last values as a row of bars."""
    shown = values[-TREND_WIDTH:]
    top = max(shown, default=0.0)
    return "".join(BARS[round((len(BARS) - 1) * value / top) if top else 0] for value in shown)
