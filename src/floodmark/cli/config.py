"""`floodmark config`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import json_option, store_path
from floodmark.cli.output import print_json, print_table

if TYPE_CHECKING:
    from floodmark.config import Examined, Origin

WRONG = 1


@click.group()
def config() -> None:
    """Show the settings and check them.

    A setting is in floodmark.toml, or in an environment variable, which has priority: FLOODMARK_RUN__FLUSH_SECONDS
    replaces flush_seconds in [run]. Neither command opens the control database or starts Spark.
    """


@config.command()
@json_option
@click.pass_context
def check(context: click.Context, as_json: bool) -> None:
    """Check the settings file and the environment, and report every problem.

    A problem is shown with its line or environment variable, its key and the allowed values: unknown keys, values of
    the wrong type or out of range, environment variables that name no setting, and values `env:NAME` that are not set.

    \b
    Examples:
      floodmark config check
      FLOODMARK_RUN__FLUSH_SECONDS=0.5 floodmark config check

    Exit codes: 0 no problem found, 1 problems found.
    """
    found = _examined()
    if as_json:
        problems = [
            {"key": one.key, "line": one.line, "variable": one.variable, "what": one.what, "hint": one.hint}
            for one in found.problems
        ]
        print_json({"file": str(found.path), "valid": not problems, "problems": problems})
    elif found.problems:
        _print_problems(found)
    else:
        given = [one for one in found.values if one.origin.kind != "default"]
        changed = sum(one.origin.kind == "environment" for one in given)
        click.echo(
            f"{found.path} is valid. Values from the file: {len(given) - changed}, from the environment: {changed}, "
            f"defaults: {len(found.values) - len(given)}."
        )
    context.exit(WRONG if found.problems else 0)


@config.command()
@click.option("--changed", is_flag=True, help="Only values that are not the default.")
@json_option
@click.pass_context
def show(context: click.Context, changed: bool, as_json: bool) -> None:
    """Show every setting: its value, where the value comes from, and what is allowed.

    Passwords, keys and tokens are replaced by dots.

    \b
    Examples:
      floodmark config show
      floodmark config show --changed
      floodmark config show --json | jq '.settings[] | select(.from == "environment")'

    Exit codes: 0 done, 1 the settings are not valid; the problems are listed.
    """
    found = _examined()
    if found.settings is None:
        _print_problems(found)
        context.exit(WRONG)
    values = [one for one in found.values if not changed or one.origin.kind != "default"]
    if as_json:
        settings = [
            {
                "key": one.key,
                "value": one.value,
                "from": one.origin.kind,
                "line": one.origin.line,
                "variable": one.origin.variable,
                "allowed": one.allowed,
            }
            for one in values
        ]
        print_json({"file": str(found.path), "settings": settings})
        return
    print_table(
        ["key", "value", "from", "allowed"],
        [[one.key, _text(one.value), _origin(one.origin), one.allowed] for one in values],
        grouped=False,
    )


def _examined() -> Examined:
    from floodmark import config as settings

    return settings.examine(settings.settings_file(store_path()))


def _print_problems(found: Examined) -> None:
    for one in found.problems:
        click.echo(f"Error: {one.what}", err=True)
        click.echo(f"Try:   {one.hint}", err=True)
    count = len(found.problems)
    click.echo(f"{count} {'problem' if count == 1 else 'problems'} found.", err=True)


def _origin(origin: Origin) -> str:
    if origin.kind == "file":
        return f"file, line {origin.line}"
    return origin.variable or origin.kind


def _text(value: Any) -> str:
    from floodmark.config import toml_value

    return toml_value(value)
