#!/usr/bin/env python
"""Write the command sections of `docs/reference/cli.md` from the help of the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from floodmark.cli.group import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
FIRST = "## `floodmark init`"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(written: str) -> str:
    """The page with its hand-written beginning, and everything after it generated."""
    beginning = written[: written.index(FIRST)]
    return beginning + "\n".join(sections(app, ()))


def sections(group: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        yield section(command, (*path, name))
        if isinstance(command, click.Group):
            yield from sections(command, (*path, name))


def section(command: click.Command, path: tuple[str, ...]) -> str:
    name = " ".join(("floodmark", *path))
    context = click.Context(command)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"{'#' * (1 + len(path))} `{name}`", f"    {usage}", *paragraphs(command)]
    rows = [row(option, context) for option in command.params if isinstance(option, click.Option)]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def paragraphs(command: click.Command) -> Iterator[str]:
    """The paragraphs of the help. A preformatted one (click's backspace mark) becomes code, without "Examples:"."""
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        if not text.startswith("\b"):
            yield text.replace("[", "\\[")
            continue
        lines = [line for line in text.split("\n")[1:] if line not in {"Example:", "Examples:"}]
        yield re.sub(r"^(?=.)", "    ", inspect.cleandoc("\n".join(lines)), flags=re.MULTILINE)


def row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or (option.opts[0], "")
    extra = option.get_help_extra(context)
    text = text.partition("  [")[0]
    if "default" in extra:
        text += f" Default: {extra['default']}."
    if "range" in extra:
        text += f" Range: {extra['range']}."
    if "required" in extra:
        text += " Required."
    cells = [cell.replace("|", "\\|") for cell in (f"`{names}`", text)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
