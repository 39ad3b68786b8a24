"""Arguments of ``unistore convert``: an optional family, sources, a destination, and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from unistore.cli.help import OPTIONS, HelpCommand, HelpGroup, HelpOption, write_options
from unistore.converters.family import Family
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import families
from unistore.errors import InputError
from unistore.system.arguments import MAX_COUNT

F = TypeVar("F", bound=Callable[..., Any])


class SharedOption(HelpOption):
    """An option that every conversion has."""


def click_option(
    option: Option, cls: type[HelpOption] = HelpOption, group: str = OPTIONS
) -> Callable[[F], F]:
    """Return a decorator that adds an option of a family to a command, in a group unless it names its own."""
    names = [option.flag]
    help_text = option.help
    settings: dict[str, Any] = {"cls": cls, "group": option.group or group}
    settings |= {"default": option.default, "metavar": option.metavar}
    if option.form in ("several", "mapping"):
        settings["multiple"] = True
        help_text = f"{help_text} Repeat for several."
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
        msg = f"{option.opts[0]} {wrong[0]}: there is no '=' in it; expected {option.metavar}"
        raise click.UsageError(msg)
    return dict(pair.split("=", 1) for pair in pairs)


def add_family_options(options: type[Options], command: F, group: str = OPTIONS) -> F:
    """Add the options of a family to a command, without those that every family has."""
    shared = declared(Options)
    for option in reversed([option for option in declared(options) if option not in shared]):
        command = click_option(option, group=group)(command)
    return command


def _shared(group: str, *names: str, **settings: Any) -> Callable[[F], F]:
    return click.option(*names, cls=SharedOption, group=group, **settings)


_before = partial(_shared, "Before you convert")
_splits = partial(_shared, "Splits")
_storage = partial(_shared, "Storage")
_resources = partial(_shared, "Resources")
_existing = partial(_shared, "An existing DST")
_output = partial(_shared, "Output")

_COMMON = (
    _before(
        "--dry-run",
        is_flag=True,
        help="Show what would be written, with memory, disk and time, and stop.",
    ),
    *(click_option(option, SharedOption) for option in declared(Options)),
    _before(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="If a file or episode has a problem: fail writes nothing, skip leaves it out. With skip, the "
        "report "
        "lists what was left out, and the exit code is 3.",
    ),
    _splits(
        "--split",
        metavar="SHARES",
        help="Assign each source to a split by a hash of its name, in SHARES such as train=0.8,val=0.2. New "
        "data moves "
        "no old source. With exact:train=0.8,val=0.2 the shares are met as closely as possible, and new data "
        "may move sources.  [default: the splits of the sources]",
    ),
    _splits(
        "--split-by",
        metavar="UNIT",
        default="source",
        show_default=True,
        help="With --split: what is assigned as a whole, a source, row, segment, volume, frame or episode. "
        "Splits that the files give to samples (masks) take precedence.",
    ),
    _splits(
        "--split-seed",
        type=click.IntRange(0, MAX_COUNT),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of the hash; another seed gives another split.",
    ),
    _splits(
        "--split-from",
        type=click.Path(),
        metavar="PATH",
        help="Copy the splits of another store, or read them from a .csv or .json list. A list is a .csv "
        "file of NAME,SPLIT lines or a "
        '.json file {"NAME": "SPLIT"}. Names that it lacks need --split.',
    ),
    _splits(
        "--group-by",
        metavar="PATTERN",
        help=r"Keep sources in one split if PATTERN, such as 'patient_\d+', finds the same text in their "
        r"names. "
        "PATTERN is a regular expression, or column:NAME for a column of the samples.",
    ),
    _storage(
        "--codec",
        metavar="CODEC",
        type=click.Choice(["auto", "fast", "balanced", "small", "zstd", "none"]),
        default="auto",
        show_default=True,
        help="Compression: auto, fast, balanced, small, zstd or none. auto chooses for each column; "
        "fast is blosc-lz4; small is "
        "blosc-zstd and gives the smallest store; zstd is zstd without blosc.",
    ),
    _storage(
        "--one-store-per-shape",
        is_flag=True,
        help="If the files differ in the shapes of their columns, write one store for each shape. The "
        "shape is appended to the name of DST: "
        "demos-states_float64_47.zarr.",
    ),
    _resources(
        "--workers",
        type=click.IntRange(min=0),
        metavar="N",
        default=0,
        show_default=True,
        help="Number of worker processes; 0, the default, uses threads in this process.",
    ),
    _resources(
        "--memory",
        metavar="SIZE",
        help="Limit the memory of all processes together, for example 4GB. May start fewer workers; "
        "the store "
        "is the same.",
    ),
    _resources(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on an existing dask cluster. Example: tcp://host:8786, or the scheduler file (.json).",
    ),
    _resources(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="With --scheduler: give up if no worker or answer comes in time.  [default: wait forever]",
    ),
    _resources(
        "--part",
        metavar="I/N",
        help="Run as job I of N that write one store together, such as the jobs of a Slurm array. All "
        "jobs need the same files; the last one to finish seals the store. "
        "Example: --part $SLURM_ARRAY_TASK_ID/8.",
    ),
    _resources(
        "--seal",
        is_flag=True,
        help="Seal the store of --part if the last job was killed before it did. Lists jobs that are "
        "missing.",
    ),
    _resources(
        "--work",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Local scratch folder, if DST is in a bucket. It holds the journal and spilled rows.",
    ),
    _existing(
        "--append",
        is_flag=True,
        help="Add new sources among SRC to the store DST, as a new version. Sources that it already has "
        "are skipped. Options "
        "are those of the store.",
    ),
    _existing("--replace", is_flag=True, help="With --append: replace sources whose content has changed."),
    _existing(
        "--check",
        multiple=True,
        type=click.Path(),
        metavar="DIR",
        help="With --append: fail if a source of the store is missing in DIR, or has changed there. "
        "Compares size "
        "and change time, not values, so a copy counts as changed. Repeat for several folders.",
    ),
    _existing("--overwrite", is_flag=True, help="Replace a finished store once the new one is sealed."),
    _existing("--restart", is_flag=True, help="Discard an unfinished conversion and begin again."),
    _output(
        "--log",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of progress on standard error. json prints one object a line: stages, steps, bytes and "
        "messages.",
    ),
    _output("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)


def add_common_options(command: F) -> F:
    """Add SRC…, DST and the common options to a command."""
    for option in reversed(_COMMON):
        command = option(command)
    command = click.argument("destination", metavar="DST", type=click.Path())(command)
    return click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())(command)


# Name of the hidden command that detects the family, as messages show it
DETECT = "[FAMILY]"
_FOLLOW = _before(
    "--follow-links-to",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="Also follow links that lead out of SRC into this folder. Repeat for several.",
)


class ConvertCommand(HelpCommand):
    """A conversion. Its help shows the family's own options before those of every conversion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name all required arguments if one is missing."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            name = str(ctx.info_name)
            msg = f"sources and a destination are needed: {ctx.command_path} SRC... DST"
            if Path(name).exists():
                msg += f"; to convert the folder '{name}': unistore convert ./{name} DST"
            raise click.UsageError(msg, ctx) from error


class FamilyGroup(HelpGroup):
    """One command per family, and a hidden one that detects the family.

    `convert` is called with the name of a family and the parsed arguments, and returns the exit code.
    `detect` returns the command of the family that sources are of.
    """

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
        common = _FOLLOW(common) if family.follows_links else common
        run = add_family_options(family, common, f"Options of {family.command()}")
        return click.command(
            family.command(),
            cls=ConvertCommand,
            help=family.description or (family.__doc__ or family.summary).strip().splitlines()[0],
            short_help=family.summary,
            examples=family.examples,
        )(run)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the families, and the first sentence of each option that every conversion has."""
        self.format_commands(ctx, formatter)
        options = [*self.commands[DETECT].params, *super().get_params(ctx)]
        write_options(formatter, ctx, options, is_short=True)

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
        owned = f"{', '.join(own)} is an option of {', '.join(families_with_all)}"
        msg = f"the family of the sources is {family}, but {owned}"
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
