"""The layout of every ``--help``: usage, what the command does, examples, then options in groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

OPTIONS = "Options"  # Title of options that belong to no group
_COMMENT = re.compile(r" {2,}")  # Two spaces or more stand between a command and what it does


class HelpOption(click.Option):
    """An option of a group of options.

    Parameters
    ----------
    group : str, default "Options"
        Title of the group.
    """

    def __init__(self, *names: Any, group: str = OPTIONS, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Return the default only: a number out of its range is an error that names the range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class HelpCommand(click.Command):
    """A command whose help shows examples before its options.

    Parameters
    ----------
    examples : sequence of str
        Commands, each with a comment after two spaces or none: ``"unistore verify a.zarr  check all bytes"``.
    """

    def __init__(self, *names: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.examples = examples

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        write_examples(formatter, self.examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(formatter, ctx, self.get_params(ctx))


class HelpGroup(HelpCommand, click.Group):
    """A group of commands whose help is laid out as that of its commands."""

    command_class = HelpCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def write_options(
    formatter: click.HelpFormatter,
    ctx: click.Context,
    parameters: Iterable[click.Parameter],
    *,
    is_short: bool = False,
) -> None:
    """Write options in groups, in the order in which the groups appear.

    Parameters
    ----------
    is_short : bool, default False
        Write the first sentence of each help only, without the default.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None or isinstance(parameter, click.Argument):
            continue
        names, text = record
        if is_short:
            text = first_sentence(text)
        group = parameter.group if isinstance(parameter, HelpOption) else OPTIONS
        if parameter.name == "help":
            group = next(reversed(groups), OPTIONS)
        groups.setdefault(group, []).append((names, text))
    for title, records in groups.items():
        with formatter.section(title):
            formatter.write_dl(records)


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop before a space."""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write commands as they are typed, with what they do in a column of its own where it fits."""
    if not examples:
        return
    split = [(*_COMMENT.split(example, maxsplit=1), "")[:2] for example in examples]
    width = formatter.width - 2
    commented = [(len(line), len(comment)) for line, comment in split if comment]
    # The column of comments that has the most comments beside their commands
    column = max(
        sorted(length for length, _ in commented),
        key=lambda column: sum(length <= column <= width - 2 - comment for length, comment in commented),
        default=0,
    )
    with formatter.section("Examples"):
        for line, comment in split:
            if comment and len(line) <= column <= width - 2 - len(comment):
                formatter.write(f"  {line:<{column}}  {comment}\n")
                continue
            formatter.write("".join(f"  {part}\n" for part in broken(line, width)))
            if comment:
                formatter.write(f"      {comment}\n")


def broken(command: str, width: int) -> list[str]:
    r"""Return a command in lines of at most `width` characters, broken before options by ``\``."""
    if len(command) <= width:
        return [command]
    lines = [""]
    for word in re.split(r" (?=--)", command):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines
