"""Pictures of the graph of transactions: text for the terminal, Mermaid for documents, SVG for the browser."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from floodmark.eventlog.forks import find_forks
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import Transaction

_SHORT = 8
_ROW_PIXELS, _LANE_PIXELS, _MARGIN_PIXELS = 34, 26, 24
_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")


@dataclass(frozen=True, slots=True)
class Node:
    """One drawn transaction. `lane` is its column; `marks` are its special properties."""

    id: str
    lane: int
    parents: tuple[str, ...]
    label: str
    replica: str
    marks: tuple[str, ...]


def nodes(history: History, *, limit: int | None = None) -> list[Node]:
    """The last `limit` transactions in canonical order, each in its replica's lane."""
    forked = {t for unit in find_forks(history) for part in unit for t in part.transactions}
    dangling = history.graph.dangling()
    shown = history.order if limit is None else history.order[-limit:]
    lanes: dict[str, int] = {}
    found = []
    for transaction in (history[t] for t in shown):
        marks = {
            "head": transaction.id in history.graph.heads,
            "merge": len(transaction.parents) > 1,
            "decision": bool(transaction.decides),
            "fork": transaction.id in forked,
            "dangling": transaction.id in dangling,
        }
        found.append(
            Node(
                id=transaction.id,
                lane=lanes.setdefault(transaction.replica, len(lanes)),
                parents=transaction.parents,
                label=_label(transaction),
                replica=transaction.replica,
                marks=tuple(mark for mark, holds in marks.items() if holds),
            )
        )
    return found


def _label(transaction: Transaction) -> str:
    counts: dict[str, int] = {}
    for event in transaction.events:
        counts[event.stream] = counts.get(event.stream, 0) + 1
    streams = ", ".join(stream if count == 1 else f"{count} of {stream}" for stream, count in counts.items())
    return streams or "no events"


def as_text(history: History, *, limit: int | None = None) -> str:
    """Newest first, one line each; `*` is a transaction, `|` a parallel branch."""
    lines = []
    waiting: list[str] = []  # one lane for each transaction that a line above has named as its parent
    for node in reversed(nodes(history, limit=limit)):
        if node.id not in waiting:
            waiting.append(node.id)
        place = waiting.index(node.id)
        drawn = " ".join("*" if lane == place else "|" for lane in range(len(waiting)))
        marks = f"  ({', '.join(node.marks)})" if node.marks else ""
        lines.append(f"{drawn}  {node.id[-_SHORT:]}  {node.label}{marks}")
        new = [parent for parent in node.parents if parent not in waiting]
        waiting[place : place + 1] = new
        if len(new) > 1:
            beside = len(waiting) - len(new) - place
            lines.append(" ".join(["|"] * (place + 1) + ["\\"] * (len(new) - 1 + beside)))
        elif not new and len(waiting) > place:
            lines.append("| " * place + "|" + " ".join("/" * (len(waiting) - place)))
    return "\n".join(lines) + ("\n" if lines else "")


def as_mermaid(history: History, *, limit: int | None = None) -> str:
    """A Mermaid flow chart."""
    drawn = nodes(history, limit=limit)
    known = {node.id: f"t{place}" for place, node in enumerate(drawn)}
    lines = ["flowchart TB"]
    for node in drawn:
        marks = f"<br/>{', '.join(node.marks)}" if node.marks else ""
        text = escape(f"{node.id[-_SHORT:]} {node.label}", quote=True).replace("&#x27;", "#39;")
        lines.append(f'    {known[node.id]}["{text}{marks}"]:::lane{node.lane % len(_COLOURS)}')
    lines += [f"    {known[p]} --> {known[node.id]}" for node in drawn for p in node.parents if p in known]
    used = sorted({node.lane % len(_COLOURS) for node in drawn})
    lines += [f"    classDef lane{lane} stroke:{_COLOURS[lane]},stroke-width:2px" for lane in used]
    return "\n".join(lines) + "\n"


def as_svg(history: History, *, limit: int | None = None) -> str:
    """An SVG image: oldest on top, a column and a colour for each replica."""
    drawn = nodes(history, limit=limit)
    lanes = 1 + max((node.lane for node in drawn), default=0)
    at = {
        node.id: (_MARGIN_PIXELS + node.lane * _LANE_PIXELS, _MARGIN_PIXELS + row * _ROW_PIXELS)
        for row, node in enumerate(drawn)
    }
    width = _MARGIN_PIXELS * 2 + lanes * _LANE_PIXELS + 520
    height = _MARGIN_PIXELS * 2 + max(len(drawn) - 1, 0) * _ROW_PIXELS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">',
        "<style>text { font: 13px ui-sans-serif, system-ui, sans-serif }</style>",
        "<title>Event log</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for node in drawn:
        parts += [_edge(at[parent], at[node.id], node.lane) for parent in node.parents if parent in at]
    parts += [_dot(node, at[node.id], text_x=_MARGIN_PIXELS + lanes * _LANE_PIXELS) for node in drawn]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _edge(above: tuple[int, int], below: tuple[int, int], lane: int) -> str:
    (x1, y1), (x2, y2) = above, below
    bend = (y2 - y1) // 2 if x1 != x2 else 0
    path = f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="{_COLOURS[lane % len(_COLOURS)]}" stroke-width="2"/>'


def _dot(node: Node, at: tuple[int, int], *, text_x: int) -> str:
    x, y = at
    colour = _COLOURS[node.lane % len(_COLOURS)]
    fill = "white" if "fork" in node.marks else colour
    marks = f' <tspan fill="#b91c1c">{escape(", ".join(node.marks))}</tspan>' if node.marks else ""
    label = f'<tspan font-family="ui-monospace, monospace" fill="#64748b">{node.id[-_SHORT:]}</tspan> '
    return (
        f'<g><title>{node.id} by {node.replica}</title><circle cx="{x}" cy="{y}" r="6" fill="{fill}" '
        f'stroke="{colour}" stroke-width="2"/>'
        f'<text x="{text_x}" y="{y + 4}">{label}{escape(node.label)}{marks}</text></g>'
    )
