"""How ``unistore convert`` reads its arguments: a family's name or none, sources, a destination."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

__all__ = ["Conversion", "Detection", "FamilyGroup", "SharedOption"]

DETECT = "detect"
"""Name of the hidden command that finds the family out."""


class SharedOption(click.Option):
    """An option that every conversion has."""


class Conversion(click.Command):
    """A conversion. Its help tells the family's own options from those that every conversion has."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options in two sections."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                is_help = not set(ctx.help_option_names).isdisjoint(parameter.opts)
                (shared if isinstance(parameter, SharedOption) or is_help else own).append(record)
        for title, records in (("Options of this family", own), ("Options of every conversion", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say what is needed where click names a missing argument alone."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            name = str(ctx.info_name)
            beside = (
                f"; for the folder of that name: unistore convert ./{name} …" if Path(name).exists() else ""
            )
            msg = f"sources and a destination are needed: {ctx.command_path} SRC... DST{beside}"
            raise click.UsageError(msg, ctx) from error


class Detection(Conversion):
    """The conversion of whatever is found: named ``[FAMILY]`` in messages, and without a family's options."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Context under the name that users know."""
        return super().make_context("[FAMILY]" if info_name == DETECT else info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the families that have an option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            group = ctx.parent.command if ctx.parent is not None else None
            owners = group.owners(error.option_name) if isinstance(group, FamilyGroup) else []
            if not owners:
                raise
            msg = (
                f"{error.option_name} is an option of {' and '.join(owners)}: name the family, as in "
                f"unistore convert {owners[0]} SRC... DST {error.option_name}"
            )
            raise click.UsageError(msg, ctx) from error


class FamilyGroup(click.Group):
    """Takes arguments that do not begin with a family's name as sources to detect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the hidden command that detects, unless a family or a help option is named."""
        if args and args[0] not in ctx.help_option_names:
            family = self._family(args[0])
            if family is None:
                self._refuse_misspelled(args[0], ctx)
            args = [DETECT, *args] if family is None else [family, *args[1:]]
        return super().parse_args(ctx, args)

    def owners(self, option: str) -> list[str]:
        """Families that have an option."""
        return [
            name
            for name in self._families()
            if any(option in parameter.opts for parameter in self.commands[name].params)
        ]

    def _families(self) -> Iterable[str]:
        return sorted(name for name, command in self.commands.items() if not command.hidden)

    def _family(self, word: str) -> str | None:
        """Family that a word names: exactly, or ``point_cloud`` and ``PointCloud`` where no such path is."""
        if word in self.commands and word != DETECT:
            return word
        plain = {name.replace("-", ""): name for name in self._families()}
        found = plain.get(word.lower().replace("_", "").replace("-", ""))
        return None if Path(word).exists() else found

    def _refuse_misspelled(self, word: str, ctx: click.Context) -> None:
        if word.startswith("-") or set(word) & set("/\\.:") or Path(word).exists():
            return
        close = difflib.get_close_matches(word.lower(), self._families(), 1, cutoff=0.5)
        if close:
            msg = f"{word!r} is neither a family nor a file or folder: did you mean {close[0]}?"
            raise click.UsageError(msg, ctx)
