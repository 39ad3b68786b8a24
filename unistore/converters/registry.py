"""List the families of sources, without importing them, and those that other packages add."""

# Others are entry points of the group "unistore.families": sonar = "unistore_sonar:FAMILY".

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unistore.errors import InputError, Problem, RunCommand

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Group of the entry points by which packages add families
ENTRY_POINTS = "unistore.families"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRecord:
    """A family of sources, and of the stores made from them."""

    # Parts are named "package.module:attribute" and imported by `part`; an empty name: none.

    name: str
    summary: str
    description: str  # what its sources are, in a sentence: the help of its command
    examples: tuple[str, ...] = ()  # command lines for that help
    # Class of its options, see `unistore.converters.options.Options`; quick to import: the help of the
    # command line needs it.
    options: str
    # Class of its converter, see `unistore.converters.protocol.Converter`; inherits its options.
    converter: str
    # `unistore.schemas.array_specs.ArraySpecs` of the arrays of its stores; without it, readers and `verify`
    # check only the arrays of every store.
    specs: str = "unistore.schemas.array_specs:GENERAL"
    rules: str = ""  # tuple of rules for the values of its stores, besides those of every store; empty: none
    export: str = ""  # `export(store) -> Iterator[File]`: the source files of a store; empty: no export
    # The same for other formats, by the value of `--to`: `{"ome-zarr": "package.module:files"}`.
    export_to: Mapping[str, str] = field(default_factory=dict)
    # `make(store, value, options, emit, folder, progress) -> Finalized`: what a conversion precomputes, made
    # of a store instead, by option: `{"voxel_size": "package.module:voxels"}`. `options`: all given ones.
    from_store: Mapping[str, str] = field(default_factory=dict)
    from_store_options: tuple[str, ...] = ()  # further options that these heed
    # What several stores would be, were all their sources converted together, where columns belong to
    # samples: `arrays(stores)` of each, `column(field, form)` and `missing(store, path)`. Empty: columns
    # belong to sources.
    alike: Mapping[str, str] = field(default_factory=dict)
    # `restore(store, scan) -> Restore`: gives each source's arrays back, to be compared with what other
    # libraries read of its files; empty: a store is compared only with what the converter reads.
    restore: str = ""
    kind: str = "unistore.data.kinds.named:rows"  # `kind(store) -> SampleKind`: the default kind of sample
    # Further kinds as Python expressions, suggested by `inspect`: "unistore.Patches(96)".
    other_kinds: tuple[str, ...] = ()
    preview: str = ""  # `unistore.converters.preview.Preview`: pictures of its samples; empty: none
    batch_size: int = 8
    general: bool = False  # whether it takes files that no other family takes, so that it is asked last
    follows_links: bool = False  # whether it can follow links to further sources (`--follow-links-to`)

    @property
    def command(self) -> str:
        """Its name on the command line: ``"point-cloud"``."""
        return self.name.replace("_", "-")

    def part(self, name: str, key: str | None = None) -> Any:
        """Import what a field names: ``part("converter")``, ``part("export_to", "ome-zarr")``."""
        reference: str = getattr(self, name) if key is None else getattr(self, name).get(key, "")
        if not reference:
            msg = f"family {self.command} has no {' '.join(filter(None, (name, key)))}"
            raise InputError(msg)
        try:
            return resolve(reference)
        except MemoryError:  # not the package's fault
            raise
        except Exception as error:
            message = f"{reference} cannot be imported: {type(error).__name__}: {error}"
            fix = "install what it needs, or remove its package"
            raise InputError(Problem(f"family {self.command}", message, fix, "family")) from error


def resolve(reference: str) -> Any:
    """Import ``"package.module:attribute"``."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


# Packages of `unistore.converters`, the most specific first
_OURS = ("trajectory", "point_cloud", "spike", "ct", "events", "rows")
# Valid names of families, as in `unistore.store.manifest`
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@cache
def _own(name: str) -> FamilyRecord:
    family: FamilyRecord = resolve(f"unistore.converters.{name}:FAMILY")
    return family


def own_families() -> list[FamilyRecord]:
    """Families of this package, in the order of the table."""
    return [_own(name) for name in _OURS]


@cache
def families() -> Mapping[str, FamilyRecord]:
    """Return every family by name, in the order in which they look at files."""
    # A family of an installed package that cannot be imported is left out with a line on standard error.
    from importlib.metadata import entry_points

    by_name = {own_family.name: own_family for own_family in own_families()}
    for point in entry_points(group=ENTRY_POINTS):
        installed_family = _installed(point)
        if installed_family is not None and installed_family.name in by_name:
            leave_out(installed_family.name, f"{point.value} has the name of an existing family")
        elif installed_family is not None:
            by_name[installed_family.name] = installed_family
    return dict(sorted(by_name.items(), key=lambda item: item[1].general))


def _installed(point: EntryPoint) -> FamilyRecord | None:
    try:
        loaded = point.load()
    except Exception as error:  # noqa: BLE001  whatever a package raises, the other families work
        leave_out(point.name, f"{point.value} cannot be imported: {type(error).__name__}: {error}")
        return None
    try:
        record: FamilyRecord = resolve("unistore.converters.seam.record:record_of")(loaded)
    except InputError as error:
        leave_out(point.name, reason_of(error, point.name))
        return None
    if not _NAME.fullmatch(record.name):
        leave_out(point.name, f"{point.value} is called {record.name!r}, expected {_NAME.pattern}")
        return None
    return record


def is_own(name: str) -> bool:
    """Return whether a family is one of this package."""
    return name in _OURS


def reason_of(error: Exception, command: str) -> str:
    """Return what is wrong with a family, without its name, which is said before."""
    if not isinstance(error, InputError):
        return str(error)
    reasons = [
        problem.message if problem.file == f"family {command}" else str(problem) for problem in error.problems
    ]
    return "; ".join(reasons) or str(error)


def leave_out(name: str, why: str, what: str = "family") -> None:
    """Print on standard error that a family, format or kind of samples is left out, and why."""
    print(f"unistore: {what} {name} is left out: {' '.join(why.split())}", file=sys.stderr)


def find_family(name: str) -> FamilyRecord | None:
    """The family of a recorded name, or None. Entry points are only read for names of other packages."""
    return _own(name) if is_own(name) else families().get(name)


def get_family(name: str) -> FamilyRecord:
    """Return the family of a name, where ``point-cloud`` is accepted for ``point_cloud``."""
    family = find_family(name.replace("-", "_"))
    if family is None:
        message = f"is not known; one of: {', '.join(sorted(families()))}"
        fix = "check the name, or install the package that adds it"
        raise InputError(Problem(f"family {name}", message, fix, "family"))
    return family


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
    family
        Empty: the command detects it.
    more
        Words at the end: options.
    is_alone
        False: the store's name ends with the family's, as others are made of the same sources.
    """
    # into the working directory, or beside the sources if these are in it
    first = sources[0].resolve()
    stem = first.name.split(".")[0] or first.name.strip(".") or "store"
    destination = Path(f"{stem}.zarr" if is_alone else f"{stem}-{family.replace('_', '-')}.zarr")
    current = Path.cwd().resolve()
    if first.is_dir() and (current == first or first in current.parents):
        destination = first.parent / destination
    paths = [f"./{path}" if path.startswith("-") else path for path in map(str, (*sources, destination))]
    words = [get_family(family).command] if family else []
    return RunCommand(("convert", *words, *paths, *more), purpose)
