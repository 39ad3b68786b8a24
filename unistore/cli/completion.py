"""``unistore completion``: what a shell reads to complete commands, options and families."""

from __future__ import annotations

import click

from unistore.cli.output import say

EXAMPLES = """\b
Examples:
  unistore completion bash >> ~/.bashrc
  unistore completion zsh >> ~/.zshrc
  unistore completion fish > ~/.config/fish/completions/unistore.fish
"""


@click.command("completion", epilog=EXAMPLES, short_help="Print the lines that make a shell complete.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the lines that make SHELL complete commands, options and families."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is not None:
        root = context.find_root().command
        made = completion(root, {}, "unistore", "_UNISTORE_COMPLETE")
        say(made.source_template % made.source_vars())
