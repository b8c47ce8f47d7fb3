"""docs/explanation/performance.md and the table of the README: made of the records of `make bench` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import left_alone
from bench.records import Record, records

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: written by `make bench` -->", "<!-- end of figures -->"

OPENING = """\
# Performance

<!-- Written by `make bench` from bench/records. A test holds this page against them. -->

Every figure is measured beside what people use today, on the same rows, in one run, turn by turn: compare the ratios,
not the milliseconds. *Plain Spark* is a `DataFrame` appended or written without any guarantee. *Structured Streaming*
is a query with `dropDuplicatesWithinWatermark` into Iceberg, or from Iceberg to Parquet files. *dlt* copies to files
with an incremental cursor. A ratio is Floodmark against the way that it names; times should be small, rows per
second large. A figure in bold reaches its goal, and the others are listed at the end.
"""

CLOSING = """\
## How to measure again

    make bench                                # every part: writes bench/records, and this page
    .venv/bin/python -m bench fresh live      # some parts: prints the figures, writes .cache/bench
    .venv/bin/python -m bench store --scale 0.1

The first turns warm the JVM up for all ways alike, and do not count. A part that ran beside other work says so.
"""

Places = tuple[str | int, ...]
OF_PLAIN = "of plain Spark"
RATIOS = "the largest against the smallest"
LARGE_IS_GOOD = frozenset({"rows/s", OF_PLAIN})


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of work, and where its figures are in the records: part, then key by key (a number: the nth key)."""

    work: str
    """`{rows}` is the figure that `rows` names."""
    unit: str
    """`ms`, `s`, `times`, or one of those where large is good."""
    ours: Places
    plain: Places | None = None
    streaming: Places | None = None
    dlt: Places | None = None
    against: str | None = None
    """Which of them the goal is about; None: the figure itself."""
    goal: float | None = None
    rows: Places | None = None
    counts: Mapping[str, Places] = field(default_factory=dict)
    """Jobs, files, bytes: what the work touched."""


def _live(size: str, way: str) -> Places:
    return ("fresh", "live batches", size, way, "milliseconds")


def _live_row(size: str, about: str, way: str, **goal: Any) -> Row:
    return Row(
        f"commit {size} {about}",
        "ms",
        _live(size, way),
        plain=_live(size, "plain append"),
        streaming=_live(size, "Structured Streaming"),
        counts={"Spark jobs": ("fresh", "live batches", size, way, "jobs")},
        **goal,
    )


def _metadata_row(work: str, size: int) -> Row:
    place = ("metadata", "by stored rows", size)
    return Row(
        f"{work}, {{rows}} stored",
        "ms",
        (*place, work, "milliseconds"),
        rows=(*place, "rows"),
        counts={
            "lists read": (*place, work, "lists read"),
            "bytes of them": (*place, work, "bytes of lists read"),
            "Spark jobs": (*place, work, "Spark jobs"),
        },
    )


METADATA_WORK = (
    "deliver, nothing new",
    "deliver 1,000 rows",
    "plan 1,000 rows, first of a process",
    "commit 1,000 rows",
    "plan a compaction, first of a process",
    "plan a compaction",
    "plan a retention by rows",
    "plan a retention by event time",
    "plan a retention by time of commit",
    "expire snapshots",
)
FLAT = {"deliver 1,000 rows": 1.3, "commit 1,000 rows": 1.3}
"""How much longer work may take with a hundred times the rows."""

IDENTIFIED = "with an identity, 2% sent before, 200,000 stored"
SECTIONS: dict[str, tuple[Row, ...]] = {
    "A live batch": (
        *(_live_row(f"{n} rows", IDENTIFIED, "Floodmark", against="plain", goal=2.0) for n in ("1,000", "10,000")),
        *(_live_row(f"{n} rows", IDENTIFIED, "Floodmark", against="streaming", goal=0.5) for n in ("1,000", "10,000")),
        *(
            _live_row(f"{n} rows", "without an identity", "Floodmark without identity", against="plain", goal=1.5)
            for n in ("1,000", "10,000")
        ),
    ),
    "A live batch beside ever more stored rows": (
        *(
            Row(
                "commit 1,000 rows, {rows} stored",
                "ms",
                ("growth", "by stored rows", size, "milliseconds"),
                rows=("growth", "by stored rows", size, "stored"),
                counts={
                    "Spark jobs": ("growth", "by stored rows", size, "jobs"),
                    "data files opened": ("growth", "by stored rows", size, "files opened"),
                },
            )
            for size in range(4)
        ),
        Row(
            "the slowest of these against the fastest",
            "times",
            ("growth", "time ratio"),
            goal=1.2,
        ),
    ),
    "A table of 10^8, 10^9 and 10^10 rows (`python -m bench metadata`: real metadata, the newest data files alone)": (
        *(_metadata_row(work, size) for work in METADATA_WORK for size in range(3)),
        *(
            Row(f"{work}: 10^10 rows against 10^8", "times", ("metadata", RATIOS, work), goal=goal)
            for work, goal in FLAT.items()
        ),
    ),
    "The first commit of a process": (
        Row(
            "start, commit 1,000 rows, end",
            "s",
            ("fresh", "first commit", "floodmark flush", "seconds"),
            plain=("fresh", "first commit", "plain script", "seconds"),
            against="plain",
            goal=1.0,
        ),
    ),
    "Commands that need no Spark": tuple(
        Row(f"`floodmark {name}`", "s", ("fresh", "commands", name, "seconds"), goal=0.35)
        for name in ("status", "capture", "quarantine list", "sink list")
    ),
    "`floodmark run`, 1,000 rows/s from two processes, flush_seconds = 0.5": tuple(
        Row(
            f"capture's return to {place}, {share}",
            "s",
            ("live", "floodmark", f"to {place}", share),
            streaming=("live", "structured streaming", f"to {place}", share) if place == "visible" else None,
            goal=goal,
            counts={
                "commits": ("live", "floodmark", "flushes"),
                "compactions": ("live", "floodmark", "compactions"),
                "data files at the end": ("live", "floodmark", "data files at the end"),
                "snapshots at the end": ("live", "floodmark", "snapshots at the end"),
            }
            if share == "p50"
            else {},
        )
        for place in ("visible", "delivered")
        for share, goal in (("p50", 1.0), ("p99", 2.5))
    ),
    "In bulk": (
        Row(
            "commit {rows} rows",
            "rows/s",
            rows=("store", "flush", "rows"),
            ours=("store", "flush", "flush", "rows_per_second"),
            plain=("store", "flush", "plain_append", "rows_per_second"),
            against="plain",
            goal=0.8,
            counts={"CPU of plain": ("store", "flush", "flush", "cpu_ratio")},
        ),
        Row(
            "commit {rows} rows with an identity, none a duplicate",
            "rows/s",
            rows=("store", "flush", "rows"),
            ours=("store", "flush", "flush_with_identity", "rows_per_second"),
            plain=("store", "flush", "plain_append", "rows_per_second"),
            against="plain",
            goal=0.8,
            counts={"CPU of plain": ("store", "flush", "flush_with_identity", "cpu_ratio")},
        ),
        Row(
            "backfill {rows} rows of Parquet, half of them stored",
            "rows/s",
            rows=("backfill", "half_stored", "rows"),
            ours=("backfill", "half_stored", "backfill", "rows_per_second"),
            plain=("backfill", "half_stored", "plain_append", "rows_per_second"),
            against="plain",
            goal=0.6,
        ),
        Row(
            "backfill {rows} JSON lines by workers (plain: in the process)",
            "rows/s",
            rows=("backfill", "large_text", "rows"),
            ours=("backfill", "large_text", "workers", "rows_per_second"),
            plain=("backfill", "large_text", "here", "rows_per_second"),
            against="plain",
            goal=1.0,
        ),
        Row(
            "compact {rows} rows of 60 files (plain: `rewrite_data_files`)",
            "rows/s",
            rows=("upkeep", "compaction", "rows"),
            ours=("upkeep", "compaction", "floodmark", "rows_per_second"),
            plain=("upkeep", "compaction", "plain", "rows_per_second"),
            against="plain",
            goal=0.9,
            counts={"files after": ("upkeep", "compaction", "floodmark", "files_after")},
        ),
        Row(
            "capture, 1,000 rows a call",
            "rows/s",
            ("store", "capture", "rows_per_call_1000", "rows_per_second"),
            goal=100_000,
        ),
        Row(
            "capture, 1 row a call, 16 threads",
            "rows/s",
            ("store", "capture", "rows_per_call_1_threads_16", "rows_per_second"),
            goal=5_000,
        ),
        Row(
            "capture over HTTP with an idempotency key, 24 clients, 100 rows a request (plain: without a key)",
            "rows/s",
            ("captures", "with a key", "rows_per_second"),
            plain=("captures", "without a key", "rows_per_second"),
            against="plain",
            goal=0.5,
        ),
    ),
    "Delivery": (
        *(
            Row(
                work,
                "ms",
                ("delivery", "ticks", 1, "floodmark", key),
                rows=("delivery", "ticks", 1, "stored"),
                streaming=("delivery", "ticks", 1, "structured_streaming", key),
                dlt=("delivery", "ticks", 1, "dlt", key),
                against="streaming",
                goal=0.5,
            )
            for work, key in (
                ("deliver, nothing new, {rows} stored", "no_new_ms"),
                ("deliver 1,000 new rows, {rows} stored", "new_rows_ms"),
            )
        ),
        *(
            Row(
                work,
                OF_PLAIN,
                ("delivery", "first_export", key, "of_plain_write"),
                rows=("delivery", "first_export", "rows"),
                streaming=("delivery", "first_export", "structured_streaming", "of_plain_write"),
                dlt=("delivery", "first_export", "dlt", "of_plain_write"),
                goal=goal,
            )
            for work, key, goal in (
                ("first export of {rows} rows, rows/s", "direct", 1.3),
                ("the same through Iceberg's own reader", "icebergs_reader", 1.2),
            )
        ),
        Row(
            "forward {rows} rows to a hub, default settings",
            "rows/s",
            rows=("delivery", "forward", "rows"),
            ours=("delivery", "forward", "chunks_of_5000", "rows_per_second"),
            goal=100_000,
        ),
    ),
    "On a Spark cluster of this machine, one core for each executor": tuple(
        Row(
            f"{work}, {way}",
            unit,
            ("cluster", way, key),
            rows=("cluster", "rows"),
            counts={other: ("cluster", other, key) for other in ("local Spark", "embedded")},
        )
        for work, unit, key in (
            ("commit 1,000 rows", "ms", "flush_ms"),
            ("commit {rows} rows", "rows/s", "flush_rows_per_second"),
            ("export {rows} rows", "rows/s", "export_rows_per_second"),
        )
        for way in ("1 executor", "2 executors")
    ),
}

README_ROWS = (
    SECTIONS["A live batch"][0],
    SECTIONS["A live batch"][1],
    *SECTIONS["Delivery"][:3],
)


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def render(kept: Mapping[str, Record]) -> str:
    """The whole page."""
    sections = [_section(title, rows, kept) for title, rows in SECTIONS.items()]
    return "\n".join([OPENING, _origin(kept), *filter(None, sections), _behind(kept), CLOSING])


def write_page() -> Path:
    """The page, the README's table, and what is said of a store left alone: from the records as they are now."""
    found = records()
    if "watch" in found:
        left_alone.write(found["watch"])
    PAGE.write_text(render(found), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    before, rest = readme.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{readme_table(found)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return PAGE


def readme_table(kept: Mapping[str, Record]) -> str:
    """The figures that the README shows."""
    cells = [
        [text_of(row, kept), f"**{shown(row.ours, row.unit, kept)}**{_counted(row, kept)}"]
        + [shown(place, row.unit, kept) for place in (row.plain, row.streaming, row.dlt)]
        for row in README_ROWS
        if value(row.ours, kept) is not None
    ]
    return _table(["", "Floodmark", "plain Spark", "Structured Streaming", "dlt"], cells)


def _origin(kept: Mapping[str, Record]) -> str:
    lines = [
        [
            one.part,
            one.date,
            f"`{one.commit}`",
            "" if one.scale == 1 else f"{one.scale:g} of the rows",
            _machine(one),
            "; ".join(filter(None, ["" if one.quiet else "other work beside it", one.note])),
        ]
        for one in kept.values()
        if one.part != "watch"  # it has its own page
    ]
    return _table(["part", "measured", "commit", "scale", "machine", "about it"], lines)


def _machine(one: Record) -> str:
    memory = f"{one.memory_gib} GiB" if one.memory_gib else ""
    return ", ".join(filter(None, [f"{one.cores} cores", memory, f"Python {one.python}" if one.python else ""]))


def _section(title: str, rows: Sequence[Row], kept: Mapping[str, Record]) -> str:
    known = [row for row in rows if value(row.ours, kept) is not None]
    if not known:
        return ""
    cells = [
        [
            text_of(row, kept),
            *(shown(place, row.unit, kept) for place in (row.plain, row.streaming, row.dlt)),
            _ours(row, kept),
            _ratio_text(row, kept),
            "; ".join(_counts(row, kept)),
        ]
        for row in known
    ]
    columns = ["", "plain Spark", "Structured Streaming", "dlt", "Floodmark", "ratio", "counted"]
    return f"## {title}\n\n{_table(columns, cells)}"


def _behind(kept: Mapping[str, Record]) -> str:
    rows = [row for section in SECTIONS.values() for row in section]
    lines = []
    for row in rows:
        if is_reached(row, kept) is False:
            figure = _ratio_text(row, kept) or shown(row.ours, row.unit, kept)
            lines.append(f"- {text_of(row, kept)}: {figure}; the goal is {_goal_text(row)}.")
    unknown = dict.fromkeys(text_of(row, kept) for row in rows if value(row.ours, kept) is None)
    missing = [f"- {text}: not measured in these records." for text in unknown]
    return "\n".join(["## Where it is behind its goals\n", *(lines or ["Nowhere in these records."]), *missing, ""])


def text_of(row: Row, kept: Mapping[str, Record]) -> str:
    found = value(row.rows, kept)
    return row.work.format(rows="many" if found is None else f"{found:,.0f}")


# ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def value(place: Places | None, kept: Mapping[str, Record]) -> float | None:
    if place is None or place[0] not in kept:
        return None
    found: Any = kept[str(place[0])].figures
    for key in place[1:]:
        if not isinstance(found, dict):
            return None
        name = list(found)[key] if isinstance(key, int) and key < len(found) else key
        if name not in found:
            return None
        found = found[name]
    return found if isinstance(found, int | float) else None


def shown(place: Places | None, unit: str, kept: Mapping[str, Record]) -> str:
    found = value(place, kept)
    if found is None:
        return ""
    if unit == "times":
        return f"{found:.2f}"
    return f"{found:,.0f} {unit}" if found >= 100 else f"{found:,.3g} {unit}"


def ratio(row: Row, kept: Mapping[str, Record]) -> float | None:
    """Ours against the way that the goal names."""
    if row.against is None:
        return None
    ours, other = value(row.ours, kept), value(getattr(row, row.against), kept)
    return None if ours is None or not other else ours / other


def is_reached(row: Row, kept: Mapping[str, Record]) -> bool | None:
    """Whether the goal is reached; None without a goal or a figure."""
    found = value(row.ours, kept) if row.against is None else ratio(row, kept)
    if found is None or row.goal is None:
        return None
    return round(found, 2) >= row.goal if row.unit in LARGE_IS_GOOD else round(found, 2) <= row.goal


def _ours(row: Row, kept: Mapping[str, Record]) -> str:
    text = shown(row.ours, row.unit, kept)
    return f"**{text}**" if is_reached(row, kept) else text


def _ratio_text(row: Row, kept: Mapping[str, Record]) -> str:
    found = ratio(row, kept)
    names = {"plain": "plain Spark", "streaming": "Structured Streaming", "dlt": "dlt"}
    return "" if found is None or row.against is None else f"{found:.2f} of {names[row.against]}"


def _goal_text(row: Row) -> str:
    bound = "at least" if row.unit in LARGE_IS_GOOD else "at most"
    figure = f"{row.goal:,g}" if row.goal is not None else ""
    return f"{bound} {figure}" if row.against or row.unit == "times" else f"{bound} {figure} {row.unit}"


def _counts(row: Row, kept: Mapping[str, Record]) -> list[str]:
    found = [(name, value(place, kept)) for name, place in row.counts.items()]
    return [f"{name}: {number:,g}" for name, number in found if number is not None]


def _counted(row: Row, kept: Mapping[str, Record]) -> str:
    counts = _counts(row, kept)
    return f" ({counts[0]})" if counts else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
