"""What docs/how-to/run-continuously.md says of a store that was left alone, and its plot: made of the record of
`python -m bench watch` alone.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from pathlib import Path

from bench.records import Record

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "run-continuously.md"
PLOT = ROOT / "docs" / "images" / "left-alone.svg"
BEGIN, END = "<!-- left alone: written by `python -m bench watch --record` -->", "<!-- end of left alone -->"

LINE_CHARACTERS_MAX = 138

Samples = list[dict[str, float]]

FIGURES = {
    "memory of `run`, MiB": "run_mib",
    "memory of its JVM, MiB": "jvm_mib",
    "memory of the hub, MiB": "hub_mib",
    "open descriptors of `run`, its JVM and the hub": ("run_descriptors", "jvm_descriptors", "hub_descriptors"),
    "data files": "files",
    "snapshots": "snapshots",
    "control database, MiB": "control_mib",
    "lake on disk, files": "lake_files",
    "lake on disk, MiB": "lake_mib",
    "spool on disk, MiB": "spool_mib",
    "rows in the table": "rows",
}
PANELS: list[tuple[str, list[tuple[str, str]]]] = [
    ("Memory, MiB", [("jvm_mib", "JVM"), ("run_mib", "run"), ("hub_mib", "hub")]),
    ("Open descriptors", [("jvm_descriptors", "JVM"), ("run_descriptors", "run"), ("hub_descriptors", "hub")]),
    ("Data files", [("files", "files")]),
    ("Snapshots", [("snapshots", "snapshots")]),
    ("Control database, MiB", [("control_mib", "database")]),
    ("Lake on disk, MiB", [("lake_mib", "lake")]),
    ("Rows in the table", [("rows", "rows")]),
    ("Rows committed in all", [("committed", "committed")]),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 180, 62, 34, 28
FONT = 'font-family="system-ui, sans-serif" font-size="12"'
SHADES = ("#0b7285", "#868e96", "#e8590c")


def samples_of(record: Record) -> Samples:
    names, *lines = record.figures["samples"]
    return [dict(zip(names.split(","), map(float, line.split(",")), strict=True)) for line in lines]


def write(record: Record) -> None:
    PLOT.write_text(plot(samples_of(record)), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text(record)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def text(record: Record) -> str:
    samples = samples_of(record)
    quarter = max(1, len(samples) // 4)
    third, last = samples[-2 * quarter : -quarter], samples[-quarter:]
    settled = samples[len(samples) // 3 :]
    commits = record.figures["commits"]
    beside = "" if record.quiet else ", beside other work"
    upkeep = ", ".join(f"{task} {'once' if n == 1 else f'{n} times'}" for task, n in commits["upkeep"].items())
    commit = f"`{record.commit}`" + (f", {record.note}" if record.note else "")
    opening = (
        f"`floodmark run` and a hub on one machine with {record.cores} cores{beside} ({record.date}, commit "
        f"{commit}), for {samples[-1]['minutes']:.0f} minutes: two writers sent about "
        f"{record.figures['rows a second']} rows a second to the hub, and `run` committed "
        f"{samples[-1]['committed']:,.0f} rows in {commits['number']:,} commits, delivered them to files, and removed "
        "them four minutes later."
    )
    closing = (
        f"A commit took {commits['seconds, median of the first half']:g} s in the first half and "
        f"{commits['seconds, median of the second half']:g} s in the second (medians), 99 of 100 at most "
        f"{commits['seconds, 99 of 100']:g} s, and the first, with the start of Spark, "
        f"{commits['seconds, longest']:g} s. In the last two thirds of the time, sampled every ten seconds, rows "
        f"waited at most {max(one['waiting_seconds'] for one in settled):g} s for their commit, and the sink was "
        f"at most {max(one['lag_seconds'] for one in settled):g} s behind. Upkeep meanwhile: {upkeep}; problems "
        f'reported: {len(commits["problems"])}. The audit at the end: "{record.figures["audit"].partition(": ")[2]}"'
    )
    sizes = (
        "The spool grows and shrinks: a writer begins a new landing file after 64 MiB, and the old one goes when its "
        "rows are committed. The JVM's memory is its heap (`spark.driver_memory`, 1 GiB) and about half a gigabyte "
        "more."
    )
    lines = [
        _wrapped(opening),
        "",
        f"![Memory, descriptors, files, snapshots, control database and rows over time](../images/{PLOT.name})",
        "",
        f"| median | minutes {_span(third)} | minutes {_span(last)} |",
        "|---|---:|---:|",
        *(f"| {name} | {_middle(third, of)} | {_middle(last, of)} |" for name, of in FIGURES.items()),
        "",
        _wrapped(closing),
        "",
        _wrapped(sizes),
    ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, LINE_CHARACTERS_MAX, break_on_hyphens=False)


def _span(part: Samples) -> str:
    return f"{part[0]['minutes']:.0f} to {part[-1]['minutes']:.0f}"


def _middle(part: Samples, of: str | tuple[str, ...]) -> str:
    names = (of,) if isinstance(of, str) else of
    value = statistics.median(sum(one[name] for name in names) for one in part)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


# ── the plot ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(samples: Samples) -> str:
    """Small charts side by side, as SVG. A point is the median of three samples: a process that is just being started
    counts twice for an instant.
    """
    samples = [
        {name: statistics.median(one[name] for one in samples[max(0, place - 1) : place + 2]) for name in samples[0]}
        for place in range(len(samples))
    ]
    wide, high = 2 * (WIDTH + GAP), (len(PANELS) // 2) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {FONT} fill="#495057">',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    for index, (title, lines) in enumerate(PANELS):
        x, y = (index % 2) * (WIDTH + GAP), (index // 2) * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x},{y})">{_panel(title, lines, samples)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _round_above(value: float) -> float:
    """The next number of one digit or two whose half is as short: the top of an axis."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10, 12) if step * power >= value)


def _panel(title: str, lines: list[tuple[str, str]], samples: Samples) -> str:
    top = _round_above(max(one[name] for name, _ in lines for one in samples))
    end = max(samples[-1]["minutes"], 0.1)

    def across(minutes: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * minutes / end

    def up(value: float) -> float:
        return TOP + (HEIGHT - TOP - 24) * (1 - value / top)

    parts = [f'<text x="{LEFT}" y="18" font-weight="600" fill="#212529">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        y = up(top * share)
        shown = f"{top * share:,.0f}" if top >= 10 else f"{top * share:.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<text x="{across(end * share):.1f}" y="{HEIGHT - 4}" text-anchor="middle">{end * share:.0f} min</text>'
        )
    for number, (name, label) in enumerate(lines):
        points = " ".join(f"{across(one['minutes']):.1f},{up(one[name]):.1f}" for one in samples)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{SHADES[number]}" stroke-width="1.8"/>')
        if len(lines) > 1:
            parts.append(
                f'<text x="{WIDTH - 12 - 60 * number}" y="18" text-anchor="end" fill="{SHADES[number]}">{label}</text>'
            )
    return "".join(parts)
