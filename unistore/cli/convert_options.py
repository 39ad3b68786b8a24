"""Arguments of ``unistore convert``: an optional family, sources, a destination, and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from unistore.converters.family import Family
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import families
from unistore.errors import InputError
from unistore.system.arguments import MAX_COUNT

F = TypeVar("F", bound=Callable[..., Any])


class SharedOption(click.Option):
    """An option that every conversion has."""


def click_option(option: Option, cls: type[click.Option] = click.Option) -> Callable[[F], F]:
    """Return what adds an option of a family to a command."""
    names = [option.flag]
    help_text = option.help
    settings: dict[str, Any] = {"cls": cls, "default": option.default, "metavar": option.metavar}
    if option.form in ("several", "mapping"):
        settings["multiple"] = True
        help_text = f"{help_text.removesuffix('.')} (several allowed)."
    if option.form == "mapping":
        settings |= {"default": (), "callback": _parse_mapping}
    elif option.kind is bool:
        names = [f"{option.flag}/{option.negative}"]
    else:
        settings |= {"type": click.Choice(option.choices) if option.choices else option.kind}
        settings |= {"nargs": option.length} if option.form == "fixed" else {}
    shown = option.default not in (None, (), {})
    return click.option(*names, help=help_text, show_default=shown, **settings)


def _parse_mapping(_: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        msg = f"{option.opts[0]} {wrong[0]}: expected {option.metavar}"
        raise click.UsageError(msg)
    return dict(pair.split("=", 1) for pair in pairs)


def add_family_options(options: type[Options], command: F) -> F:
    """Add the options of a family to a command, without those that every family has."""
    shared = declared(Options)
    for option in reversed([option for option in declared(options) if option not in shared]):
        command = click_option(option)(command)
    return command


_shared = partial(click.option, cls=SharedOption)

_COMMON = (
    _shared("--dry-run", is_flag=True, help="Show what was found and what would be written, and stop."),
    _shared(
        "--codec",
        type=click.Choice(["auto", "fast", "balanced", "small", "zstd", "none"]),
        default="auto",
        show_default=True,
        help="auto: chosen for each column by trial. fast: blosc-lz4. small: blosc-zstd, smallest. "
        "zstd: zstd without blosc.",
    ),
    _shared(
        "--split",
        metavar="SHARES",
        help="Assign sources to splits by the hash of their names: train=0.8,val=0.2. Data that is added "
        "moves none. exact:train=0.8,val=0.2 meets the shares of samples, and adding data moves others.",
    ),
    _shared(
        "--split-by",
        metavar="WHAT",
        default="source",
        show_default=True,
        help="Assign single samples instead: episode, segment, volume; masks of the files win.",
    ),
    _shared(
        "--split-seed",
        type=click.IntRange(0, MAX_COUNT),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of the hash: another one gives other splits.",
    ),
    _shared(
        "--split-from",
        type=click.Path(),
        metavar="PATH",
        help="Take over the splits of a store, or of a list: lines NAME,SPLIT in a .csv file, "
        '{"NAME": "SPLIT"} in a .json file. --split is for names that it lacks.',
    ),
    _shared(
        "--group-by",
        metavar="PATTERN",
        help=r"Keep together what agrees in a part of its name: 'patient_\d+', or '(\w+)/' for the first "
        "folder; or in a column of the samples: column:subject.",
    ),
    _shared(
        "--append",
        is_flag=True,
        help="Add SRC... to DST, a store, as its next version; with its options. What it has is skipped.",
    ),
    _shared("--replace", is_flag=True, help="With --append: put changed sources in the place of the old."),
    _shared(
        "--check",
        multiple=True,
        type=click.Path(),
        metavar="DIR",
        help="With --append: refuse if a source of the store is missing in DIR, or changed (several).",
    ),
    _shared("--overwrite", is_flag=True, help="Replace a finished store, once the new one is sealed."),
    _shared("--restart", is_flag=True, help="Discard an unfinished conversion instead of resuming it."),
    _shared(
        "--work",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="If DST is in a bucket: local folder for the journal and spilled rows of the conversion.",
    ),
    _shared(
        "--workers",
        type=click.IntRange(min=0),
        default=0,
        help="Worker processes; 0 (default): this process, on threads.",
    ),
    _shared(
        "--memory",
        metavar="SIZE",
        help="Memory limit of all processes together: 4GB. May reduce the workers; the store is the same.",
    ),
    _shared(
        "--scheduler",
        metavar="TCP",
        help="Use an existing dask cluster: tcp://host:8786, or its scheduler file (….json).",
    ),
    _shared(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="With --scheduler: give up after so long without a worker or an answer of the scheduler.",
    ),
    _shared(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="skip: leave out files and episodes with problems, list them, finish with exit code 3.",
    ),
    _shared(
        "--part",
        metavar="i/N",
        help="Do the i-th of N shares of the work, as one of N jobs on any machines that see the same files. "
        "The last to end seals.",
    ),
    _shared("--seal", is_flag=True, help="Do no share: seal what all parts have done."),
    _shared(
        "--one-store-per-shape",
        is_flag=True,
        help="Where columns differ in shape: a store of each, DST with the shape in its name.",
    ),
    *(click_option(option, SharedOption) for option in declared(Options)),
    _shared(
        "--log",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json: stages, steps, bytes and messages on standard error, one JSON object a line.",
    ),
    _shared("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)


def add_common_options(command: F) -> F:
    """Add SRC…, DST and the common options to a command."""
    for option in reversed(_COMMON):
        command = option(command)
    command = click.argument("destination", metavar="DST", type=click.Path())(command)
    return click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())(command)


# Name of the hidden command that detects the family, as messages show it
DETECT = "[FAMILY]"
_FOLLOW = click.option(
    "--follow-links-to",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="Follow links out of SRC into this folder, too (several allowed).",
)


class ConvertCommand(click.Command):
    """A conversion. Its help lists the family's own options apart from the common ones."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_shared = isinstance(parameter, SharedOption) or parameter.name == "help"
            if record is not None:
                (shared if is_shared else own).append(record)
        for title, records in (("Options of this family", own), ("Options of every conversion", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name all required arguments if one is missing."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            name = str(ctx.info_name)
            msg = f"sources and a destination are needed: {ctx.command_path} SRC... DST"
            if Path(name).exists():
                msg += f"; for the folder of that name: unistore convert ./{name} …"
            raise click.UsageError(msg, ctx) from error


class FamilyGroup(click.Group):
    """One command per family, and a hidden one that detects the family."""

    # `convert` gets a family's name and the parsed arguments, and returns the exit code. `detect` returns the
    # command of the family that sources are of

    def __init__(
        self, *, convert: Callable[..., int], detect: Callable[[Sequence[str]], str], **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._convert = convert
        self._detect = detect

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(family.command() for family in families().values())

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a family, made when it is needed, as this imports the family's options."""
        if cmd_name not in self.commands and (family := families().get(cmd_name.replace("-", "_"))):
            self.commands[cmd_name] = self._command(family)
        return self.commands.get(cmd_name)

    def _command(self, family: type[Family]) -> click.Command:
        common = add_common_options(partial(self._convert, family.name))
        run = add_family_options(family, common)
        run = _FOLLOW(run) if family.follows_links else run
        epilog = "\n".join(["\b\nExamples:", *(f"  {example}" for example in family.examples)])
        return click.command(
            family.command(),
            cls=ConvertCommand,
            help=family.description or (family.__doc__ or family.summary).strip().splitlines()[0],
            short_help=family.summary,
            epilog=epilog if family.examples else None,
        )(run)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per family, without importing their options."""
        listed_families = sorted(families().values(), key=lambda family: family.command())
        with formatter.section("Families"):
            formatter.write_dl([(family.command(), family.summary) for family in listed_families])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the hidden command, unless a family or a help option is given."""
        if args and args[0] not in ctx.help_option_names:
            family = self._family(args[0], ctx)
            words = args if family is None else args[1:]
            args = [family or self._implied_family(args, ctx) or DETECT, *words]
        return super().parse_args(ctx, args)

    def families_with(self, ctx: click.Context, option: str) -> list[str]:
        """Return families that have an option, without those whose options cannot be imported."""
        owners = []
        for name in self.list_commands(ctx):
            with suppress(InputError):
                command = self.get_command(ctx, name)
                assert command is not None
                if any(option in (*own.opts, *own.secondary_opts) for own in command.params):
                    owners.append(name)
        return owners

    def _implied_family(self, args: list[str], ctx: click.Context) -> str | None:
        # The family that has all the given options. Where several have them, the sources say which
        flags = {arg.partition("=")[0] for arg in args if arg.startswith("--") and arg != "--"}
        common = set[str]()
        for parameter in self.commands[DETECT].params:
            common.update(parameter.opts)
        own = sorted(flags - common - {"--help"})
        owners = {flag: self.families_with(ctx, flag) for flag in own}
        families_with_all = sorted(set.intersection(*map(set, owners.values()))) if owners else []
        if not families_with_all and owners and all(owners.values()):
            owned = "; ".join(f"{flag} is an option of {', '.join(names)}" for flag, names in owners.items())
            msg = f"no family has all of these options: {owned}"
            raise click.UsageError(msg, ctx)
        if len(families_with_all) < 2 or "--help" in flags:
            return families_with_all[0] if families_with_all else None
        command = self.get_command(ctx, families_with_all[0])
        assert command is not None
        # Any of these commands knows which words are values of the options, and which are sources.
        parsed = command.make_context(families_with_all[0], list(args), parent=ctx).params
        family = self._detect(parsed["sources"])
        if family in families_with_all:
            return family
        msg = f"the sources are {family}, and {', '.join(own)} belongs to {', '.join(families_with_all)}"
        raise click.UsageError(msg, ctx)

    def _family(self, word: str, ctx: click.Context) -> str | None:
        # Other spellings count where no path has the name. Misspelled ones are refused
        names = self.list_commands(ctx)
        if word in names:
            return word
        if word.startswith("-") or Path(word).exists():
            return None
        spellings = {name.replace("-", ""): name for name in names}
        spelling = spellings.get(word.lower().replace("_", "").replace("-", ""))
        if spelling is None and not set(word) & set("/\\.:"):
            from difflib import get_close_matches

            if close := get_close_matches(word.lower(), names, 1, cutoff=0.5):
                msg = f"{word!r} is neither a family nor a file or folder: did you mean {close[0]}?"
                raise click.UsageError(msg, ctx)
        return spelling
