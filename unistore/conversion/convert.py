"""Choose the family and the executor of a conversion, and run it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unistore.conversion.build import FinishedStoreError, is_store
from unistore.conversion.executors.local import parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.executors.worker_process import CONVERSION
from unistore.conversion.report import Report
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.converters.detection import Claims, Detection, nothing_found, survey
from unistore.converters.families import converter_of, modules_of
from unistore.converters.family import Family
from unistore.converters.options import SPLIT_OPTIONS, Options, declared
from unistore.converters.registry import conversion_of, families, get_family, is_own
from unistore.converters.source_scan import sources_by_shape
from unistore.errors import Fixes, InputError, Problem, RunCommand
from unistore.progress import resolve_progress
from unistore.remote.url import is_url, local_path, parse_url, require_local_path
from unistore.store.names import copies_folder
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.types import PathLike

if TYPE_CHECKING:
    from unistore.conversion.executors.dask_executor import Dask
    from unistore.converters.adapter.converter import Converter


def convert_with(
    settings: Settings,
    paths: Sequence[Path],
    destination: PathLike,
    family: str | Detection,
    options: Mapping[str, Any],
    progress: Progress | bool | None = None,
    *,
    is_chosen: bool = True,
) -> Report:
    """Convert sources of a family with its options.

    `is_chosen` says whether the user chose the destination, so that commands in errors name it.
    """
    known_family = get_family(family if isinstance(family, str) else family.family)
    try:
        return _converted(settings, paths, destination, family, options, progress)
    except InputError as error:
        from unistore.conversion.keywords import note_keywords

        shown = _with_destination(error, os.fspath(destination)) if is_chosen else error
        note_keywords(shown, known_family)
        raise shown from error.__cause__


def _converted(
    settings: Settings,
    paths: Sequence[Path],
    destination: PathLike,
    family: str | Detection,
    options: Mapping[str, Any],
    progress: Progress | bool | None,
) -> Report:
    name = family if isinstance(family, str) else family.family
    converter = make_converter(name, options)
    with resolve_progress(progress) as callbacks, executor_for(settings, name, callbacks) as executor:
        report = run(
            converter,
            paths,
            destination,
            settings,
            executor=executor,
            is_named=isinstance(family, str),
            claims=None if isinstance(family, str) else family.claims,
            progress=callbacks,
        )
    if not report.unfinished_parts:
        forget_copies(destination, settings)
    return report


def _with_destination(error: InputError, destination: str) -> InputError:
    """Return an error whose command for another family has the given destination."""
    problems = [_command_into(problem, destination) for problem in error.problems]
    return InputError(problems, can_skip=error.can_skip) if problems else error


def _command_into(problem: Problem, destination: str) -> Problem:
    commands = [fix for fix in problem.fixes if isinstance(fix, RunCommand) and fix.arguments[0] == "convert"]
    if problem.kind != "family" or len(commands) != 1:  # several families become several stores
        return problem
    (command,) = commands
    own = replace(command, arguments=(*command.arguments[:-1], destination))
    return replace(problem, fix=tuple(own if fix == command else fix for fix in problem.fixes))


def destinations_by_shape(
    settings: Settings,
    paths: Sequence[Path],
    destination: str,
    family: str | Detection,
    options: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return a destination and options for the sources of each shape.

    A destination is called ``demos-states_float64_47.zarr``, for example. Sources of other shapes are
    excluded by name.
    """
    name = family if isinstance(family, str) else family.family
    converter = make_converter(name, options)
    with executor_for(settings, name, NO_PROGRESS) as executor:
        by_label = sources_by_shape(
            converter,
            paths,
            parallel_map(executor),
            is_named=isinstance(family, str),
            claims=None if isinstance(family, str) else family.claims,
        )
    if len(by_label) < 2:
        return {destination: dict(options)}
    stem, dot, suffix = destination.rstrip("/").rpartition(".")
    if not dot or "/" in suffix:
        stem, dot, suffix = destination.rstrip("/"), "", ""
    destinations = {}
    for label in by_label:
        exclude = list(options.get("exclude", ()))
        for other, names in by_label.items():
            if other != label:
                exclude += names
        destinations[f"{stem}-{label}{dot}{suffix}"] = {**options, "exclude": tuple(exclude)}
    return destinations


def executor_for(
    settings: Settings, family: str | None, progress: Progress
) -> AbstractContextManager[Dask | Processes]:
    """Return where the steps of a conversion run. `family`: None for sources in stores."""
    if settings.scheduler is not None:
        from unistore.conversion.executors.dask_executor import Dask

        return Dask(settings.scheduler, memory=settings.limit, wait=settings.wait, tell=progress.tell)
    imports = (CONVERSION,) if family is None else _imports(get_family(family))
    return Processes(settings.workers, memory=settings.limit, imports=imports, tell=progress.tell)


def _imports(family: type[Family]) -> tuple[str, ...]:
    # Workers need the modules of the converter, and those of the others, which are asked about each file
    # first
    others_asked = () if family.scan_identifies else families().values()
    needed = [family, *(other for other in others_asked if is_own(other.name) and not other.general)]
    return CONVERSION, *dict.fromkeys(chain.from_iterable(map(modules_of, needed)))


def source_paths(sources: PathLike | Iterable[PathLike]) -> list[Path]:
    """Return sources as a list of paths."""
    return [Path(require_local_path(name, "a source")) for name in _source_names(sources)]


def _source_names(sources: PathLike | Iterable[PathLike]) -> list[str]:
    alone = isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable)
    several: list[Any] = [sources] if alone else list(cast("Iterable[PathLike]", sources))
    if not all(isinstance(source, str | os.PathLike) for source in several):
        message = f"must be files and folders, got {sources!r}"
        raise InputError.at("sources", message, "give a path, or a list of paths", "option")
    names = [os.fspath(source) for source in several]
    if not names or "" in names:
        message = "no source was given, or its name is empty"
        raise InputError.at("sources", message, "give files or folders", "option")
    return names


def local_sources(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    settings: Settings,
    progress: Progress | bool | None = None,
) -> list[Path]:
    """Return sources as a list of paths. Sources with URLs are copied; the paths are their copies."""
    names = _source_names(sources)
    urls = [name for name in names if is_url(name) and local_path(name) is None]
    if not urls:
        return source_paths(names)
    from unistore.conversion.staging import stage

    build = settings.open_build(destination, names)
    try:
        build.check_early(overwrite=settings.overwrite)
    except FinishedStoreError as error:
        # which of them are new is known once they are copied
        fix = RunCommand(("convert", *names, build.destination, "--append"), "if some of these are new")
        (problem,) = error.problems
        raise InputError(replace(problem, fix=(fix, *problem.fixes))) from None
    with resolve_progress(progress) as callbacks:
        paths = stage(urls, _copies_folder(destination, settings), callbacks)
    path_of_url = dict(zip(urls, paths, strict=True))
    return [path_of_url[name] if name in path_of_url else Path(name) for name in names]


def forget_copies(destination: PathLike, settings: Settings) -> None:
    """Remove the copies of sources after a conversion has finished."""
    folder = _copies_folder(destination, settings)
    if folder.is_dir():
        from unistore.conversion.staging import remove_copies

        remove_copies(folder)


def _copies_folder(destination: PathLike, settings: Settings) -> Path:
    # Beside the store, or in the working folder of one in a bucket
    store = local_path(destination)
    if store is None:
        store = Path(settings.work or ".", parse_url(os.fspath(destination)).name)
    return copies_folder(store)


def check_exist(paths: Sequence[Path]) -> None:
    """Raise InputError if a path does not exist."""
    for path in paths:
        require_local_path(path, "a source")
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise InputError.at(", ".join(missing), "no such file or folder", "check the path", "missing")


def shared_folder(settings: Settings, destination: PathLike) -> Path | None:
    """Return the staging folder that jobs share. None: there is one job, or the store is finished."""
    if not settings.is_shared or (not settings.overwrite and is_store(destination)):
        return None
    return replace(settings, part=None, seal=False).open_build(destination).folder


def detect_family(
    paths: Sequence[Path],
    build_folder: Path | None = None,  # that jobs share
    progress: Progress = NO_PROGRESS,
) -> Detection:
    """Detect the family of sources.

    Parameters
    ----------
    paths : sequence of Path
        The sources.
    build_folder : Path, optional
        Staging folder that jobs share. None: there is one job.
    """
    check_exist(paths)
    with Processes() as executor:
        ask = parallel_map(executor, progress, "detecting")
        if build_folder is not None:
            from unistore.conversion.shared_scan import shared_scan

            ask = shared_scan(ask, build_folder, paths, progress)
        surveyed = survey(paths, ask)
    detections = surveyed.detected()
    # the scan of the only family tells what cannot be read, or leaves it out if the user says so
    if surveyed.unreadable and len(detections) != 1:
        raise InputError(list(surveyed.unreadable.values()), can_skip=False)
    if len(detections) > 1:
        raise InputError(several_families(surveyed))
    if not detections:
        if refused := surveyed.refused():
            raise InputError(refused, can_skip=False)
        raise InputError(nothing_found(surveyed))
    return detections[0]


def implied_family(options: Iterable[str]) -> str | None:
    """Return the only family that has options with these names. None: there is none, or there are several."""
    shared = {option.name for option in declared(Options)}
    names = set(options) - shared
    having = []
    for family in families().values() if names else ():
        with suppress(InputError):  # the options of a package that cannot be imported
            if names <= {option.name for option in declared(family)}:
                having.append(family.name)
    return having[0] if len(having) == 1 else None


def several_families(surveyed: Claims) -> Problem:
    """Return the problem of paths with sources of several families."""
    paths = list(map(str, surveyed.roots))
    counts = [f"{count} of {family.replace('_', ' ')}" for family, count in surveyed.counts().items()]
    commands = [
        conversion_of(family, surveyed.roots, exclude_words(family, surveyed), is_alone=False)
        for family in surveyed.counts()
    ]
    message = f"contains files of several families: {', '.join(counts)}"
    return Problem(", ".join(paths), message, tuple(commands), "family")


def exclude_words(family: str, surveyed: Claims) -> list[str]:
    """Return words of a command line that skip plain arrays which the family would reject."""
    words = []
    for name in surveyed.general_only(family):
        words += ["--exclude", name]
    return words


def make_converter(family: str, options: Mapping[str, Any]) -> Converter:
    """Return the converter of a family with its options. Options of several values accept a single one."""
    record = get_family(family)
    own_options = [option.name for option in declared(record)]
    if unknown := [name for name in options if name not in own_options]:
        import difflib

        common = [field.name for field in fields(Settings)]
        meant = [difflib.get_close_matches(name, [*own_options, *common], 1)[:1] for name in unknown]
        known = f"use one of {', '.join(own_options)}, or one of every conversion: {', '.join(common)}"
        fix: Fixes = (f"use {', '.join(chain(*meant))}", known) if any(meant) else known
        message = f"{record.name} has no such option"
        raise InputError.at(", ".join(unknown), message, fix, "option")
    return converter_of(record, **options)


def recorded_converter(family: str, options: Mapping[str, Any]) -> Converter:
    """Return the converter of a store, from its recorded options."""
    not_options = ("codec", *SPLIT_OPTIONS, "found", "skipped")
    return make_converter(family, {name: value for name, value in options.items() if name not in not_options})
