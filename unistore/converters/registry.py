"""Find families by name, in this package and in installed packages."""

# Others are entry points of the group "unistore.families": sonar = "unistore_sonar:Sonar".

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unistore.converters.family import Family
from unistore.errors import InputError, Problem, RunCommand

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from unistore.schemas.recorded_rules import Package, StoreRoot

# Group of the entry points by which packages add families
ENTRY_POINTS = "unistore.families"


def resolve(reference: str) -> Any:
    """Import an object by its reference ``"package.module:attribute"``."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


# Their classes in `unistore.converters`, the most specific first
_OURS = {
    "trajectory": "trajectory:Trajectory",
    "point_cloud": "point_cloud:PointCloud",
    "spike": "spike:Spike",
    "ct": "ct:Ct",
    "events": "events:EventsFamily",
    "rows": "rows:RowsFamily",
}
# Valid names of families, as in `unistore.store.manifest`
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@cache
def _own(name: str) -> type[Family] | str:
    """Return a family of this package, or the reason why it cannot be imported."""
    reference = f"unistore.converters.{_OURS[name]}"
    try:
        family: type[Family] = resolve(reference)
    except MemoryError:  # not the package's fault
        raise
    except Exception as error:  # noqa: BLE001  whatever is wrong with one family, the others work
        return f"{reference} cannot be imported: {type(error).__name__}: {error}"
    return family


def own_families() -> list[type[Family]]:
    """Return the families of this package that can be imported, the most specific first."""
    return [family for family in map(_own, _OURS) if not isinstance(family, str)]


@cache
def families() -> Mapping[str, type[Family]]:
    """Return every family by name, in the order in which they are asked about files.

    A family that cannot be imported is skipped, with a line on standard error.
    """
    from importlib.metadata import entry_points

    for name in _OURS:
        if isinstance(reason := _own(name), str):
            leave_out(name, reason)
    by_name = {own_family.name: own_family for own_family in own_families()}
    for point in entry_points(group=ENTRY_POINTS):
        installed_family = _installed(point)
        if installed_family is not None and installed_family.name in by_name:
            leave_out(installed_family.name, f"{point.value} has the name of an existing family")
        elif installed_family is not None:
            by_name[installed_family.name] = installed_family
    return dict(sorted(by_name.items(), key=lambda item: item[1].general))


def _installed(point: EntryPoint) -> type[Family] | None:
    try:
        loaded = point.load()
    except Exception as error:  # noqa: BLE001  whatever a package raises, the other families work
        leave_out(point.name, f"{point.value} cannot be imported: {type(error).__name__}: {error}")
        return None
    try:
        from unistore.converters.checking import checked_family

        family = checked_family(loaded)
    except InputError as error:
        leave_out(point.name, reason_of(error, point.name))
        return None
    if not _NAME.fullmatch(family.name):
        leave_out(
            point.name, f"{point.value} has the name {family.name!r}, which does not match {_NAME.pattern}"
        )
        return None
    return family


def is_own(name: str) -> bool:
    """Return whether a family belongs to this package."""
    return name in _OURS


def reason_of(error: Exception, command: str) -> str:
    """Return what is wrong with a family, without its name."""
    if not isinstance(error, InputError):
        return str(error)
    reasons = [
        problem.message if problem.file == f"family {command}" else str(problem) for problem in error.problems
    ]
    return "; ".join(reasons) or str(error)


def leave_out(name: str, why: str, what: str = "family") -> None:
    """Print on standard error that a family, format or sample kind is skipped, and why."""
    print(f"unistore: the {what} {name} is skipped: {' '.join(why.split())}", file=sys.stderr)


def find_family(name: str) -> type[Family] | None:
    """Return a family by the name that stores record, or None if it is not installed."""
    if not is_own(name):
        return families().get(name)
    family = _own(name)
    return None if isinstance(family, str) else family


def get_family(name: str) -> type[Family]:
    """Return a family by name. Hyphens count as underscores: ``point-cloud``.

    Raises
    ------
    InputError
        If there is no such family. The message lists the families.
    """
    own_name = name.replace("-", "_")
    family = find_family(own_name)
    if family is not None:
        return family
    message = f"does not exist; the families are {', '.join(sorted(families()))}"
    fix = "check the name, or install the package that adds it"
    if is_own(own_name) and isinstance(reason := _own(own_name), str):
        message = reason
        fix = "install unistore again"
    raise InputError(Problem(f"family {name}", message, fix, "family"))


def family_of(root: StoreRoot) -> type[Family]:
    """Return the family of a store.

    Parameters
    ----------
    root : StoreRoot
        What the root of the store states.

    Raises
    ------
    InputError
        If the family is not installed. The message names the package that wrote the store.
    """
    name = root.family
    package = root.package
    if find_family(name) is None and not is_own(name):
        written_with = f"{package.name} {package.version}".rstrip()
        message = f"is not installed; the store was written with {written_with}"
        fix = f"install the package {package.name}"
        raise InputError(Problem(f"family {name}", message, fix, "family"))
    return get_family(name)


def package_of(family: type[Family]) -> Package:
    """Return the name and the version of the package of a family. The version is empty if it is unknown."""
    from importlib.metadata import PackageNotFoundError, entry_points, version

    from unistore.schemas.recorded_rules import Package  # loads numpy

    module = family.__module__
    name = module.partition(".")[0]
    for point in () if is_own(family.name) else entry_points(group=ENTRY_POINTS):
        if point.value.partition(":")[0] == module and point.dist is not None:
            name = point.dist.name
    try:
        return Package(name, version(name))
    except PackageNotFoundError:
        return Package(name, "")


def conversion_of(
    family: str,
    sources: Sequence[Path],
    more: Sequence[str] = (),
    purpose: str = "",
    *,
    is_alone: bool = True,
) -> RunCommand:
    """Return the command that converts sources, for the fix of a problem.

    Parameters
    ----------
    family : str
        Name of the family. Empty: the command detects it.
    sources : sequence of Path
        The sources.
    more : sequence of str, default ()
        Options to add at the end.
    purpose : str, default ""
        Rest of the sentence; see `RunCommand`.
    is_alone : bool, default True
        False: the name of the store ends with the family, because other stores are made of the same sources.
    """
    # into the working directory, or beside the sources if these are in it
    first = sources[0].resolve()
    stem = first.name.split(".")[0] or first.name.strip(".") or "store"
    destination = Path(f"{stem}.zarr" if is_alone else f"{stem}-{family.replace('_', '-')}.zarr")
    current = Path.cwd().resolve()
    if first.is_dir() and (current == first or first in current.parents):
        destination = first.parent / destination
    paths = [f"./{path}" if path.startswith("-") else path for path in map(str, (*sources, destination))]
    words = [get_family(family).command()] if family else []
    return RunCommand(("convert", *words, *paths, *more), purpose)
