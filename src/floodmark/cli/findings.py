"""How findings of a check are shown: what is wrong, where, and what to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floodmark.upkeep.findings import Finding

WRONG = 3
"""The exit code of a check that found something."""
SHOWN_MAX = 200


def print_findings(findings: Sequence[Finding], *, sound: str) -> None:
    wrong = [item for item in findings if item.wrong]
    for item in [*wrong, *(item for item in findings if not item.wrong)][:SHOWN_MAX]:
        click.echo(f"{'WRONG' if item.wrong else 'note '}  {item.kind}  {item.where}")
        click.echo(f"       {item.what}")
        click.echo(f"       {item.run}")
    if len(findings) > SHOWN_MAX:
        click.echo(f"… and {len(findings) - SHOWN_MAX} more: `--json` has all of them.")
    click.echo(f"{len(wrong)} things are wrong." if wrong else sound)


def finding_json(item: Finding) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "wrong": item.wrong,
        "where": item.where,
        "range": None if item.range is None else [item.range.after, item.range.through],
        "what": item.what,
        "run": item.run,
    }
