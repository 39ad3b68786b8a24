"""``unistore convert``: one subcommand per family, or a detected one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from unistore.cli.output import progress_bar, progress_log, say, say_done, say_json
from unistore.conversion.executors.worker_process import CONVERSION, start_early
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import FamilyRecord, families
from unistore.errors import InputError, UnistoreError, first_few
from unistore.system.arguments import MAX_COUNT
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore import Appended
    from unistore.conversion.dry_run import DryRun
    from unistore.conversion.run import Report
    from unistore.conversion.settings import Settings
    from unistore.converters.survey import Detection


# Arguments of ``unistore convert``: an optional family, sources, a destination, and options.

F = TypeVar("F", bound=Callable[..., Any])


class SharedOption(click.Option):
    """An option that every conversion has."""


def _click_option(option: Option, cls: type[click.Option] = click.Option) -> Callable[[F], F]:
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
        command = _click_option(option)(command)
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
        "zstd: without blosc, as GPUs decode it.",
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
    *(_click_option(option, SharedOption) for option in declared(Options)),
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
        """Write options in two sections."""
        sections: dict[str, list[tuple[str, str]]] = {
            "Options of this family": [],
            "Options of every conversion": [],
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                is_help = not set(ctx.help_option_names).isdisjoint(parameter.opts)
                shared = isinstance(parameter, SharedOption) or is_help
                sections[f"Options of {'every conversion' if shared else 'this family'}"].append(record)
        for title, records in sections.items():
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
        """Return commands of all families."""
        return sorted(family.command for family in families().values())

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a family, made when it is needed, as this imports the family's options."""
        if cmd_name not in self.commands and (family := families().get(cmd_name.replace("-", "_"))):
            self.commands[cmd_name] = self._command(family)
        return self.commands.get(cmd_name)

    def _command(self, family: FamilyRecord) -> click.Command:
        common = add_common_options(partial(self._convert, family.name))
        run = add_family_options(family.part("options"), common)
        run = _FOLLOW(run) if family.follows_links else run
        epilog = "\n".join(["\b\nExamples:", *(f"  {example}" for example in family.examples)])
        return click.command(
            family.command,
            cls=ConvertCommand,
            help=family.description,
            short_help=family.summary,
            epilog=epilog if family.examples else None,
        )(run)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per family, without importing their options."""
        listed_families = sorted(families().values(), key=lambda family: family.command)
        with formatter.section("Families"):
            formatter.write_dl([(family.command, family.summary) for family in listed_families])

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


SAME = "the same options, and sources of the same names and sizes, not changed since (values were not read)"
SKIPPED = 3  # Exit code of a conversion that left something out because of problems
# Options of a conversion that an append has, too; all others are the store's own
_OF_APPEND = (
    *("sources", "destination", "append", "replace", "check", "exclude"),
    *("restart", "workers", "scheduler", "memory", "on_error", "as_json"),
)
MAX_REASON = 100  # Characters of a reason in the table of what was left out
MAX_ROWS = 50  # Rows of that table

EXAMPLES = r"""\b
Examples:
  unistore convert recordings/ train.zarr            the family is detected
  unistore convert recordings/ train.zarr --dry-run  what would be written
  unistore convert FAMILY --help                     what a family takes
  unistore convert scans/ new.zarr --split train=0.8,val=0.2 --group-by 'patient_\d+'
  unistore convert scans/ new.zarr --split train=0.8,val=0.2 --split-from old.zarr
  unistore convert recordings/ train.zarr --append   add what is new, as a version
  unistore convert scans/ new.zarr --part $SLURM_ARRAY_TASK_ID/8
  unistore convert demos/ demos.zarr --one-store-per-shape   demos-states_float64_47.zarr and so on
"""


def _detect(sources: Sequence[str]) -> Detection:
    from unistore.conversion.convert import detect_family, source_paths

    detection = detect_family(source_paths(sources))
    say_done(f"{detection.family.replace('_', ' ')} ({detection.layout}): {detection.reason}", err=True)
    return detection


def _detect_command(sources: Sequence[str]) -> str:
    from unistore.converters.registry import get_family

    return get_family(_detect(sources).family).command


def _convert(family: str | None, **arguments: Any) -> int:
    if arguments["append"]:
        return _append(family, arguments)
    of_append = [arguments.pop(name) for name in ("append", "replace", "check")]
    if any(of_append):
        raise click.UsageError("--replace and --check need --append")
    given_paths = [*arguments["sources"], *arguments.get("follow_links_to", ())]
    start_early(given_paths, family, [CONVERSION], decodes=not arguments["dry_run"])
    from unistore.conversion.convert import source_paths
    from unistore.conversion.settings import Settings

    sources = arguments.pop("sources")
    destination = arguments.pop("destination")
    by_shape = arguments.pop("one_store_per_shape")
    as_json = arguments.pop("as_json")
    log = arguments.pop("log")
    dry_run = arguments.pop("dry_run")
    settings = Settings(**{field.name: arguments.pop(field.name) for field in fields(Settings)})
    paths = source_paths([*sources, *arguments.pop("follow_links_to", ())])
    chosen: str | Detection = family or _detect(sources)
    destinations = {destination: arguments}
    if by_shape:
        from unistore.conversion.convert import destinations_by_shape

        destinations = destinations_by_shape(settings, paths, destination, chosen, arguments)
    codes = [
        _convert_into(place, chosen, paths, settings, options, log=log, as_json=as_json, dry_run=dry_run)
        for place, options in destinations.items()
    ]
    return max(codes)


def _convert_into(
    destination: str,
    chosen: str | Detection,
    paths: Sequence[Path],
    settings: Settings,
    options: Mapping[str, Any],
    *,
    log: str,
    as_json: bool,
    dry_run: bool,
) -> int:
    from unistore.conversion.convert import convert_with, make_converter

    claims = None if isinstance(chosen, str) else chosen.claims
    family = chosen if isinstance(chosen, str) else chosen.family
    if dry_run:
        from unistore.conversion.dry_run import dry_run as plan_only

        converter = make_converter(family, options)
        shown = plan_only(converter, paths, settings, is_named=claims is None, claims=claims)
        if as_json:
            say_json(shown.to_json(), indent=1)
        else:
            say(preview_text(shown, destination, settings))
        return SKIPPED if shown.scan.options.get("skipped") else 0
    again = settings.overwrite or settings.restart
    if not again and _is_up_to_date(family, options, paths, destination, settings, claims):
        if as_json:
            say_json({"destination": destination, "up_to_date": True})
        else:
            say_done(f"{destination}: up to date: {SAME}")
        return 0
    with progress_log(log, destination) as bar, _stopped_by_signals():
        report = convert_with(settings, paths, destination, chosen, options, bar)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(report_text(report))
    return SKIPPED if report.skipped else 0


def _append(family: str | None, arguments: Mapping[str, Any]) -> int:
    """Run ``unistore convert SRC... STORE --append``."""
    from unistore import append
    from unistore.store.versions import open_stores

    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    others = [name for name in arguments if context.get_parameter_source(name) is given]
    if foreign := [f"--{name.replace('_', '-')}" for name in others if name not in _OF_APPEND]:
        msg = f"{', '.join(foreign)}: with --append, options are those of the store"
        raise click.UsageError(msg)
    store = arguments["destination"]
    own_family = open_stores(store).stores[0].family
    if family not in (None, own_family):
        msg = f"{store} is {own_family.replace('_', ' ')}; leave the family out"
        raise click.UsageError(msg)
    with progress_bar() as bar:
        appended = append(
            arguments["sources"],
            store,
            replace=arguments["replace"],
            check=arguments["check"],
            exclude=arguments["exclude"],
            restart=arguments["restart"],
            workers=arguments["workers"],
            scheduler=arguments["scheduler"],
            memory=arguments["memory"],
            on_error=arguments["on_error"],
            progress=bar,
        )
    if arguments["as_json"]:
        say_json(asdict(appended))
    else:
        say_done(_appended_text(appended))
    return SKIPPED if appended.report is not None and appended.report.skipped else 0


def _appended_text(appended: Appended) -> str:
    skipped = f"skipped, as the store has or removed them: {count_of(len(appended.skipped), 'source')}"
    lines = [f"{appended.store}: up to date: version {appended.version}"]
    if appended.report is not None:
        lines = [f"appended to {appended.store}: version {appended.version}"]
        lines += report_text(appended.report).splitlines()[1:-1]
    if appended.replaced:
        lines.append(f"  in the place of old ones: {count_of(len(appended.replaced), 'source')}")
    return "\n".join([*lines, *([f"  {skipped}"] if appended.skipped else [])])


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    # SIGTERM and SIGUSR1 end the conversion after the steps at work, a second one at once
    from unistore.conversion.executors.local import STOP

    def stop(number: int, _frame: object) -> None:
        STOP.set()
        signal.signal(number, before[number])

    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        STOP.clear()
        for number in numbers:
            signal.signal(number, before[number])


def _is_up_to_date(family: str, options: Any, *arguments: Any) -> bool:
    # What is wrong is told by the conversion
    from unistore.conversion.convert import make_converter
    from unistore.conversion.run import is_up_to_date

    try:
        return is_up_to_date(make_converter(family, options), *arguments)
    except (UnistoreError, OSError):
        return False


@click.group(
    cls=FamilyGroup,
    convert=_convert,
    detect=_detect_command,
    epilog=EXAMPLES,
    options_metavar="",
    subcommand_metavar="[FAMILY] SRC... DST [OPTIONS]",
    short_help="Convert source files into one sealed store.",
)
def convert() -> None:
    """Convert files into one sealed store: SRC... DST, the family detected or named.

    DST is a folder, or a URL in a bucket: s3://bucket/name.zarr, gs://…, az://….

    The same command resumes an interrupted conversion. DST appears once it is complete.

    \b
    Every family takes --dry-run, --codec, --split, --split-by, --split-seed,
    --split-from, --group-by, --overwrite, --restart, --work, --workers,
    --scheduler, --wait, --memory, --on-error, --part, --seal, --log, --exclude,
    --append, --one-store-per-shape and --json.
    """  # noqa: D301  an escape that keeps click from wrapping


@convert.command(DETECT, cls=ConvertCommand, hidden=True)
@add_common_options
def detect(**arguments: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, **arguments)


def preview_text(shown: DryRun, destination: str, settings: Settings) -> str:
    """Return what would be written, and the memory that it takes."""
    from unistore.converters.survey import counted_scan, verdict_counts

    lines = [
        f"would write {destination}: {shown.scan.family.replace('_', ' ')}",
        f"  {count_of(len(shown.scan.sources), 'source')}, {size(shown.source_bytes)}",
        f"  files: {verdict_counts([count.to_json() for count in counted_scan(shown.scan)])}",
    ]
    for table in shown.tables:
        rows = ("about " if table.name in shown.estimated else "") + count_of(table.rows, "row")
        shards = count_of(len(list(table.tasks())), "shard")
        lines.append(f"  {table.name}: {rows}, {shards} of {table.shard_rows:,} rows")
        lines += [
            f"    {array.column}: {array.field.dtype} {array.shape}, chunks {array.chunk}, "
            f"reads {array.amplification:.2f}× what a sample needs"
            for array in table.arrays
        ]
    peak = shown.peak
    step = size(shown.estimate.step)
    processes = f"{count_of(peak.workers, 'worker')} and this process" if peak.workers else "one process"
    if peak.workers < peak.wanted:
        processes += f" (of {peak.wanted} requested: no more fit into {settings.memory})"
    lines.append(f"  uncompressed {size(shown.raw_bytes)}")
    lines.append(f"  peak memory about {size(peak.bytes)}: {processes}, {step} for the largest step of each")
    lines += [f"  note: {note}" for note in shown.scan.notes]
    return "\n".join([*lines, *_skipped_table(shown.scan.options.get("skipped", ()))])


def report_text(report: Report) -> str:
    """Return what was written, and how often labels are."""
    from unistore.converters.survey import verdict_counts
    from unistore.report.values import label_lines, sample_noun

    samples = count_of(report.samples, sample_noun(report.sample_table))
    written = f"{size(report.stored_bytes)} in {count_of(report.files, 'file')}"
    ratio = f"ratio {report.raw_bytes / max(1, report.stored_bytes):.2f}"
    compression = f"{size(report.raw_bytes)} uncompressed, {ratio}"
    if report.unfinished_parts:
        missing = first_few([str(number) for number in report.unfinished_parts], 20)
        return f"{report.destination}: this part is done; not finished: {missing}; the last part to end seals"
    lines = [
        f"sealed {report.destination}",
        f"  {report.family.replace('_', ' ')}: {samples} from {count_of(report.sources, 'source')}",
        f"  {size(report.source_bytes)} of sources → {written} ({compression})",
        f"  files: {verdict_counts(report.verdicts)}",
    ]
    if report.resumed:
        lines.append(f"  resumed: {report.resumed} of {report.tasks} shards were already written")
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  labels of {line}" for line in label_lines(report.destination)]
    return "\n".join(
        [*lines, *_skipped_table(report.skipped), f"next: unistore inspect {report.destination}"]
    )


def _place_in_file(entry: Mapping[str, Any]) -> str:
    row = f" row {entry['row']}" if "row" in entry else ""
    return f"{entry['dataset']}{row}"


def _skipped_table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of what was left out, with reasons."""
    if not entries:
        return []
    from unistore.report.text import aligned, shortened

    left_out = len({entry["left_out"] for entry in entries})
    rows = [
        (entry["file"], _place_in_file(entry), shortened(entry["reason"], MAX_REASON))
        for entry in entries[:MAX_ROWS]
    ]
    lines = [f"  left out because of problems: {left_out} (listed in unistore-report.json)"]
    lines += [f"    {row}" for row in aligned([("file", "dataset", "reason"), *rows])]
    more = len(entries) - len(rows)
    return [*lines, *([f"    and {more} more problems"] if more else [])]
