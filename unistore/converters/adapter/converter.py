"""Runs a family of `unistore.converters.family` as the core runs every converter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from unistore.converters.adapter.by_schema import SchemaSteps
from unistore.converters.adapter.formats import (
    FileToOpen,
    FileToScan,
    calling,
    fault,
    formats_for,
    formats_of,
    group_of,
    open_file,
    origins_in,
    returned,
)
from unistore.converters.adapter.sources import (
    Choices,
)
from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.common.columns import SourceColumn
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.faults import is_unreadable
from unistore.converters.family import Family
from unistore.converters.family_types import Grouping
from unistore.converters.files.formats import has_ending
from unistore.converters.files.links import LinkedFiles, follow_links, real_files
from unistore.converters.files.paths import (
    Folders,
    ListedFolders,
    Listing,
    real_path,
    relative_names,
    rows_below,
)
from unistore.converters.opened import FileSummary, Format, OpenFile, Origin, SourceFile
from unistore.converters.protocol import Emit, Finalized, Scan, Scanned, SourceArrays, SourceReader
from unistore.converters.scan_types import Candidate, Found, Parts, SourcePart
from unistore.errors import InputError, Problem
from unistore.schemas.tables import Field, OwnForm, Table
from unistore.system.types import AnyArray


class Converter(SourceReader):
    """Converts the sources of a family.

    It opens files when a method needs them and keeps none open between calls, as handles of HDF5 must not
    cross processes. `unistore.converters.detection` calls `look`, `unistore.converters.source_scan` calls
    `find`, `scan` and `gather`, `unistore.conversion` the others.

    Parameters
    ----------
    plugin
        The family, with the values of its options. The steps of a family that has no `Family.scan` follow
        from its schema.

    Attributes
    ----------
    formats
        Formats of its files, those that it names first.
    further_suffixes
        Endings of formats that it takes and does not name. Families that name them are asked before it.
    """

    def __init__(self, plugin: Family) -> None:
        self.plugin = plugin
        self.exclude = plugin.exclude
        self.formats: tuple[Format, ...] = formats_for(plugin)
        self._formats_by_name = {one.name: one for one in self.formats}
        named = formats_of(plugin.formats)
        further = self.formats[len(named) :]
        self.further_suffixes = tuple(chain.from_iterable([one.suffixes for one in further]))
        suffixes = chain.from_iterable(one.suffixes for one in self.formats)
        self._suffixes = tuple(dict.fromkeys([*suffixes, *plugin.companions]))
        self._steps: Family | SchemaSteps = plugin
        if type(plugin).scan is Family.scan:
            self._steps = SchemaSteps(plugin)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plugin,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Converter) and other.plugin == self.plugin

    def __hash__(self) -> int:
        return hash(type(self.plugin))

    @property
    def class_name(self) -> str:
        """Name of the family's class, for errors of its code."""
        kind = type(self.plugin)
        return f"{kind.__module__}.{kind.__qualname__}"

    def excluding(self, names: tuple[str, ...]) -> Converter:
        """Return the same converter that leaves out these names."""
        return type(self)(replace(self.plugin, exclude=names))

    @property
    def family(self) -> str:
        """Name of the family."""
        return self.plugin.name

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Lower-case endings of the files that are taken from folders."""
        return self._suffixes

    def look(self, file: Candidate) -> Claim:
        """Say whether a file is one of the family's: ask the formats, and of an opened file the family.

        The claim may depend on whether a partner of the file exists, not on the content of other files. What
        is raised is the file's problem.
        """
        if not has_ending(file.path, self.suffixes):
            return no(f"is not a {' or '.join(self.suffixes)} file")
        fitting = self._fitting(file.path)
        near = FolderNeighbours(self, file.folders, file.roots)
        name = fitting[0].name if fitting else ""
        source = SourceFile(file.path, file.path.name, near.roots, near, name)
        with calling(self.plugin, source.name):
            by_name = self.plugin.claim(source)
        if by_name is not None or not fitting:
            return by_name or no("does not belong to a source")
        opening, claim = self._recognised(source, fitting)
        if opening is None:
            return claim
        with calling(opening, source.name):
            # Other families that take files of the format look at the same open file.
            opened: OpenFile = file.opened(opening, partial(open_file, opening, source))
        with calling(self.plugin, source.name):
            matched = self.plugin.match(FileSummary(source, opening.name, self._listed(opened)))
            returned(Claim, self.plugin, "match", source.name, matched)
        # Of bytes without a header the family alone says what they mean.
        is_headerless = claim.certainty == "maybe" and not opening.offered
        if matched.certainty == "no" or is_headerless:
            return matched
        reason = " and ".join(filter(None, (claim.reason, matched.reason)))
        is_sure = "maybe" not in (claim.certainty, matched.certainty)
        return sure(reason, matched.layout) if is_sure else maybe(reason)

    def _recognised(self, file: SourceFile, fitting: Sequence[Format]) -> tuple[Format | None, Claim]:
        """Return the format that claims a file, and its claim. Else the reason of the last that does not."""
        claim = None
        offered: dict[Format, Claim] = {}
        for candidate in fitting:
            with calling(candidate, file.name):
                claim = returned(Claim, candidate, "recognise", file.name, candidate.recognise(file))
            if claim.certainty == "no":
                continue
            if not candidate.offered:
                return candidate, claim
            offered[candidate] = claim
        if offered:
            return _surest(file, offered)
        file.check_whole()
        return None, claim or no(f"does not have a format of the family '{self.plugin.command()}'")

    def _recognised_anew(self, file: SourceFile) -> tuple[Format | None, Claim]:
        return self._recognised(file, self._possible(file.path))

    def _fitting(self, path: Path | str) -> Sequence[Format]:
        """Return the formats with the ending of a file: of whole names first, of any content last."""
        name = str(path).lower()
        fitting = [one for one in self.formats if name.endswith(one.suffixes)]
        if len(fitting) > 1:
            fitting.sort(key=lambda one: (not name.endswith(_whole_names(one)), _takes_any(one)))
        return fitting or [one for one in self.formats if has_ending(path, one.suffixes)]

    def _possible(self, path: Path) -> Sequence[Format]:
        """Formats with the ending of a file. What the user names, whatever its ending, is of the first."""
        return self._fitting(path) or self.formats[:1]

    def _format_name(self, path: Path | str) -> str:
        fitting = self._fitting(path)
        return fitting[0].name if fitting else ""

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """Group the files into sources by their names, with the family's `group`.

        Sources whose names the exclusion covers may be among them.
        """
        linked = LinkedFiles()
        if self.plugin.follows_links:
            near = FolderNeighbours(self, Folders(listing.roots), listing.roots)
            linked = follow_links(listing, self.suffixes, exclusion.covers)
            sources = [self._source_file(path, name, near) for path, name in linked.names.items()]
        else:
            sources = self.files(listing, exclusion)
        expected = [file for file in sources if file.format or not self.plugin.follows_links]
        choices = Choices(listing.roots, expected)
        where = ", ".join(map(str, listing.roots))
        with calling(self.plugin, where):
            grouping = returned(Grouping, self.plugin, "group", where, self.plugin.group(sources))
            wrong = choices.add(grouping)
        if wrong:
            raise fault(self.plugin, "group", where, wrong)
        parts = choices.parts
        left_out = choices.left_out
        problems = [*linked.problems, *choices.problems]
        if not parts and not problems and not exclusion.covered:
            message = f"the folder contains no {' or '.join(self.suffixes)} file"
            problems.append(Problem(where, message, "check the path", "missing"))
        if not problems:
            left_out += [(path, "in no source") for path in choices.unused.values()]
        if self.plugin.follows_links:
            left_out = self._left_by_links(listing, left_out, parts, linked.followed)
        notes = (*linked.notes, *choices.notes)
        return Found(parts=parts, left_out=left_out, notes=notes, problems=problems)

    def files(self, listing: Listing, exclusion: Exclusion) -> list[SourceFile]:
        """Return files that the family groups, by default those of its formats that are not excluded."""
        paths = listing.with_suffixes(self.suffixes)
        named = zip(relative_names(paths), paths, strict=True)
        takes_all = self.plugin.groups_excluded
        folders = ListedFolders(map(Path, paths)) if takes_all else Folders(listing.roots)
        near = FolderNeighbours(self, folders, listing.roots)
        return [
            self._source_file(Path(path), name, near)
            for name, path in named
            if takes_all or not exclusion.covers(name)
        ]

    def _source_file(self, path: Path, name: str, near: FolderNeighbours) -> SourceFile:
        return SourceFile(path, name, near.roots, near, self._format_name(path))

    @contextmanager
    def opened(self, file: SourceFile) -> Iterator[tuple[Format, OpenFile]]:
        opening, claim = self._recognised_anew(file)
        if opening is None:
            raise file.problem(claim.reason)
        with calling(opening, file.name), open_file(opening, file) as opened:
            yield opening, self._listed(opened)

    def _listed(self, opened: OpenFile) -> OpenFile:
        """Return an open file as the family sees it."""
        return opened.without(self.plugin.unlisted_groups) if self.plugin.unlisted_groups else opened

    def _left_by_links(
        self, listing: Listing, left_out: Sequence[tuple[Path, str]], parts: Parts, followed: Sequence[Path]
    ) -> list[tuple[Path, str]]:
        """Add files that no link leads to, drop those that sources call otherwise, and name whole folders."""
        used = set(real_files(map(Path, chain.from_iterable(parts.files()))))
        targets = tuple([f"{os.path.realpath(path)}{os.sep}" for path in followed])
        behind = [path for path in listing.files if path.startswith(targets) and self._format_name(path)]
        candidates = [*left_out, *[(Path(path), "no link leads to it") for path in behind]]
        by_folder: dict[tuple[Path, str], list[Path]] = {}
        reals = real_files([path for path, _ in candidates])
        for (path, why), real in zip(candidates, reals, strict=True):
            if real not in used:
                by_folder.setdefault((path.parent, why), []).append(path)
        left: list[tuple[Path, str]] = []
        for (folder, why), paths in by_folder.items():
            first, stop = rows_below(listing.files, real_path(folder))
            is_whole = stop - first == len(paths) and folder not in listing.roots
            left += [(path, why) for path in ([folder] if is_whole else paths)]
        return left

    def scan(self, part: SourcePart) -> Scanned:
        """Read the headers of a source, not all its values, in any order, in any process.

        Raises
        ------
        InputError
            With every problem of the source.
        """
        group = group_of(part)
        unlisted = self.plugin.unlisted_groups
        files = [FileToScan(file, self._recognised_anew, unlisted) for file in group.files]
        with self._calling(part.name):
            scanned = returned(Scanned, self.plugin, "scan", part.name, self._steps.scan(group, files))
        if not any(file.shows for file in files):
            return scanned
        # Of all its files: another source is equal if it has the values of each.
        return replace(scanned, origins=tuple(self.origins(part, scanned)))

    def origins(self, part: SourcePart, scanned: Any) -> Sequence[Origin]:
        """Return where the values of a source lie that was scanned, see `OpenFile.shows`."""
        files = group_of(part).files
        origins: list[Origin] = []
        for file in files:
            if len(files) == 1 or self._fitting(file.path):  # not a text about the others
                with self.opened(file) as (_, opened):
                    origins += origins_in([opened], self._steps.stored_arrays(scanned))
        return origins

    def twins(self) -> Sequence[tuple[str, ...]]:
        """Return the endings that a file may have in two compressions or containers, see `Format.twins`."""
        return tuple(dict.fromkeys(one.twins for one in self.formats if one.twins))

    @property
    def scan_identifies(self) -> bool:
        """See `Family`."""
        return self.plugin.scan_identifies

    @property
    def thread_safe(self) -> bool:  # type: ignore[override]  # of the family
        return self.plugin.thread_safe

    @property
    def reads_planes(self) -> bool:  # type: ignore[override]  # of the family
        return self.plugin.reads_planes

    @property
    def reads_in_place(self) -> bool:  # type: ignore[override]  # of the family
        return self.plugin.reads_in_place

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Merge all sources into one scan, where `scanned` has what `scan` returned for each of `parts`.

        If some sources have problems, this is called with the others, to report what these disagree on.
        """
        return self._steps.reconcile(parts, scanned)

    def forms(self, parts: Parts, scanned: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, SourceColumn]]]:
        """Yield the name and columns of each source, for ``--one-store-per-shape``.

        Sources of other families have none.
        """
        for name, one in zip(parts.names, scanned, strict=True):
            forms = self._steps.forms(one)
            if forms is not None:
                yield name, forms

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> SourceArrays:
        """See `SourceReader`."""
        files = self._files_of(scan, source)
        with self._calling(scan.sources.names[source]):
            return self._steps.prepare(scan, source, files, emit, folder)

    def finalize(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """See `SourceReader`."""
        return self._steps.finish(scan, prepared)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """See `SourceReader`."""
        files = self._files_of(scan, source)
        with self._calling(scan.sources.names[source]):
            self._steps.read(scan, source, files, table, lo, hi, out)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """See `SourceReader`."""
        files = self._files_of(scan, source)
        with self._calling(scan.sources.names[source]):
            self.plugin.read_planes(scan, source, files, table, lo, hi, out)

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """See `SourceReader`."""
        self.plugin.pack(scan, table, column, source, rows, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """See `SourceReader`."""
        return self._steps.own(scan, table, source, fields)

    def _calling(self, location: str) -> AbstractContextManager[None]:
        """Have faults of the family's code name its package."""
        return nullcontext() if isinstance(self._steps, SchemaSteps) else calling(self.plugin, location)

    def _files_of(self, scan: Scan, source: int) -> list[FileToOpen]:
        """Return the files of a source, which its ``detail`` names with their formats.

        They may read the files that the scan named, and no other.
        """
        origin = scan.sources.details[source]
        paths = tuple(map(Path, scan.sources.paths(source)))
        unlisted = self.plugin.unlisted_groups
        return [
            FileToOpen(SourceFile(path, name, paths), self._formats_by_name[kind], unlisted)
            for path, name, kind in zip(paths, origin.files, origin.formats, strict=False)
        ]


def _surest(file: SourceFile, claims: Mapping[Format, Claim]) -> tuple[Format, Claim]:
    """Return the only format that claims a file, or is sure of it, and its claim."""
    certain = {one: claim for one, claim in claims.items() if claim.certainty == "sure"}
    chosen = certain or claims
    if len(chosen) > 1:
        message = f"could be {' or '.join(sorted(one.name for one in chosen))}"
        raise file.problem(message, "uninstall the package of the format that it is not")
    ((one, claim),) = chosen.items()
    return one, claim


class FolderNeighbours:
    """What lies near a file, as the formats of a family open it."""

    def __init__(self, converter: Converter, folders: Folders, roots: tuple[Path, ...] = ()) -> None:
        self._converter = converter
        self.roots = roots
        self.has = folders.has
        self.holds = folders.holds

    def head(self, path: Path) -> FileSummary | None:
        """See `Neighbours.head`."""
        file = SourceFile(path, path.name, self.roots)
        try:
            with self._converter.opened(file) as (opening, opened):
                head = FileSummary(file, opening.name, opened)
                list(head.arrays)  # which are listed once, while the file is open
                return head
        except InputError as error:
            if is_unreadable(error):
                raise
            return None


def _takes_any(kind: Format) -> bool:
    """Return whether a format takes every file with one of its endings, whatever is in it."""
    return type(kind).recognise is Format.recognise


def _whole_names(format: Format) -> tuple[str, ...]:
    """Suffixes of a format that are names of files: they do not begin with a dot."""
    return tuple([suffix for suffix in format.suffixes if not suffix.startswith(".")])
