"""`floodmark completion`"""

from __future__ import annotations

import click

PROGRAM = "floodmark"
VARIABLE = "_FLOODMARK_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, datasets and sinks in SHELL.

    Names are read from the store that is given with -s or FLOODMARK_STORE. No JVM is started.

    \b
    Examples:
      floodmark completion bash > ~/.local/share/bash-completion/completions/floodmark
      floodmark completion zsh > "${fpath[1]}/_floodmark"
      floodmark completion fish > ~/.config/fish/completions/floodmark.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from floodmark.cli.group import app

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    # Not the class's own `source`: for bash that starts the shell only to look at its version.
    click.echo(ShellComplete.source(found(app, {}, PROGRAM, VARIABLE)))
