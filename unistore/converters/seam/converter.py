"""Runs a family of `unistore.converters.family` as the core runs every converter."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.common.columns import TEXT_KINDS, SourceColumn, missing_value, within
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.faults import is_unreadable
from unistore.converters.family import Chosen, Cut, Family, Group, Grouping
from unistore.converters.files.folders import Folders, ListedFolders
from unistore.converters.files.formats import has_ending
from unistore.converters.files.links import LinkedFiles, follow_links, real_files
from unistore.converters.files.paths import Listing, real_path, relative_names, rows_below
from unistore.converters.opened import BLOCK_BYTES, Array, FieldOf, Format, Head, Opened, Origin, SourceFile
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan, Scanned
from unistore.converters.scan import Candidate, Found, Parts, SourcePart
from unistore.converters.schema import array_of
from unistore.converters.seam.deriving import emit_derived, emit_ragged
from unistore.converters.seam.formats import (
    FileToOpen,
    FileToScan,
    calling,
    fault,
    formats_for,
    formats_of,
    group_of,
    joined,
    json_facts,
    open_file,
    origins_in,
    returned,
    source_file,
)
from unistore.converters.seam.gather import SIZES, facts_of, finalize_sources, forms_in, gather_sources
from unistore.converters.seam.sources import (
    Choices,
    Planned,
    RowOrigin,
    RowPlace,
    ScannedSource,
    ScannedTable,
    check_chosen,
    check_columns,
    extent_of,
    further_files,
    picked_of,
    picks_of,
    problems_of_facts,
)
from unistore.converters.seam.values import coded
from unistore.errors import InputError, Problem, location_of
from unistore.schemas.tables import Field, OwnForm, Table
from unistore.system.foreign import begin_reading
from unistore.system.hints import AnyArray


class SeamConverter(Converter):
    """Converts the files of a family."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plugin,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeamConverter) and other.plugin == self.plugin

    def __hash__(self) -> int:
        return hash(type(self.plugin))

    def excluding(self, names: tuple[str, ...]) -> SeamConverter:
        return type(self)(replace(self.plugin, exclude=names))

    @property
    def family(self) -> str:  # type: ignore[override]  # a ClassVar of other converters
        return self.plugin.name

    @property
    def suffixes(self) -> tuple[str, ...]:
        return self._suffixes

    def look(self, file: Candidate) -> Claim:
        """Ask the formats, and of an opened file the family."""
        if not has_ending(file.path, self.suffixes):
            return no(f"is no {', '.join(self.suffixes)} file")
        source = self._source_file(file.path, file.path.name, Neighbours(self, file.folders, file.roots))
        with calling(self.plugin, source.name):
            by_name = self.plugin.claim(source)
        fitting = self._fitting(file.path)
        if by_name is not None or not fitting:
            return by_name or no("is a companion of no source")
        opening, claim = self._recognised(source, fitting)
        if opening is None:
            return claim
        with calling(opening, source.name):
            # Other families that take files of the format look at the same open file.
            opened: Opened = file.opened(opening, partial(open_file, opening, source))
        with calling(self.plugin, source.name):
            matched = self.plugin.match(Head(source, opening.name, self._listed(opened)))
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
        return None, claim or no(f"is of no format of {self.plugin.name}")

    def _recognised_anew(self, file: SourceFile) -> tuple[Format | None, Claim]:
        return self._recognised(file, self._possible(file.path))

    def _fitting(self, path: Path | str) -> Sequence[Format]:
        """Return the formats with the ending of a file, a whole name before the mere ending of it."""
        name = str(path).lower()
        fitting = [one for one in self.formats if name.endswith(one.suffixes)]
        if len(fitting) > 1:
            fitting.sort(key=lambda one: not name.endswith(_whole_names(one)))
        return fitting or [one for one in self.formats if has_ending(path, one.suffixes)]

    def _possible(self, path: Path) -> Sequence[Format]:
        """Formats with the ending of a file. What the user names, whatever its ending, is of the first."""
        return self._fitting(path) or self.formats[:1]

    def _format_name(self, path: Path | str) -> str:
        fitting = self._fitting(path)
        return fitting[0].name if fitting else ""

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """Group the files into sources, by the family's `group`."""
        linked = LinkedFiles()
        if self.plugin.follows_links:
            near = Neighbours(self, Folders(listing.roots), listing.roots)
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
            message = f"no {' or '.join(self.suffixes)} file in this folder"
            problems.append(Problem(where, message, kind="missing"))
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
        near = Neighbours(self, folders, listing.roots)
        return [
            self._source_file(Path(path), name, near)
            for name, path in named
            if takes_all or not exclusion.covers(name)
        ]

    def _source_file(self, path: Path, name: str, near: Neighbours) -> SourceFile:
        return SourceFile(path, name, near.roots, near, self._format_name(path))

    @contextmanager
    def opened(self, file: SourceFile) -> Iterator[tuple[Format, Opened]]:
        opening, claim = self._recognised_anew(file)
        if opening is None:
            raise file.problem(claim.reason)
        with calling(opening, file.name), open_file(opening, file) as opened:
            yield opening, self._listed(opened)

    def _listed(self, opened: Opened) -> Opened:
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
        group = group_of(part)
        if self._says("scan"):
            unlisted = self.plugin.unlisted_groups
            files = [FileToScan(file, self._recognised_anew, unlisted) for file in group.files]
            with calling(self.plugin, part.name):
                scanned = returned(Scanned, self.plugin, "scan", part.name, self.plugin.scan(group, files))
            return self._with_shown(scanned, files)
        openings = []
        for file in group.files:
            opening, claim = self._recognised_anew(file)
            if opening is None:
                return self._not_ours(part, claim)
            openings.append(opening)
        if len(openings) == 1:  # as nearly all of millions
            with calling(openings[0], part.name), open_file(openings[0], group.files[0]) as one:
                return self._with_origins(self._describe(part, group, openings, [one]), [one])
        with calling(openings[0], part.name), ExitStack() as stack:
            opened = []
            for opening, file in zip(openings, group.files, strict=True):
                with calling(opening, file.name):
                    opened.append(stack.enter_context(open_file(opening, file)))
            return self._with_origins(self._describe(part, group, openings, opened), opened)

    def _with_origins(self, scanned: Scanned, opened: Sequence[Opened]) -> Scanned:
        """Add where the values of a source lie, if its open files show those of others."""
        if not any(one.shows for one in opened):
            return scanned
        return replace(scanned, origins=origins_in(opened, self._stored_arrays(scanned)))

    def _with_shown(self, scanned: Scanned, files: Sequence[FileToScan]) -> Scanned:
        """Add where the values of stored arrays lie, if files that were scanned show those of others."""
        shown = list(chain.from_iterable(file.origins for file in files))
        if not shown:
            return scanned
        stored = self._stored_arrays(scanned)
        origins = [places for name, places in shown if not name or stored is None or name in stored]
        return replace(scanned, origins=tuple(chain.from_iterable(origins)))

    def _stored_arrays(self, scanned: Any) -> Collection[str] | None:
        """Return the arrays of a source's files that are stored, as the files call them (None: not known)."""
        if not isinstance(scanned, ScannedSource):
            return self.plugin.stored_arrays(scanned)
        names: set[str] = set()
        for table in scanned.tables.values():
            names.update(place.array for place in table.picked.places.values())
        return names

    def origins(self, part: SourcePart, scanned: Any) -> Sequence[Origin]:
        """Open the files of a source, see `Converter`."""
        files = group_of(part).files
        origins: list[Origin] = []
        for file in files:
            if len(files) == 1 or self._fitting(file.path):  # not a text about the others
                with self.opened(file) as (_, opened):
                    origins += origins_in([opened], self._stored_arrays(scanned))
        return origins

    def twins(self) -> Sequence[tuple[str, ...]]:
        """See `Converter`: those of its formats."""
        return tuple(dict.fromkeys(one.twins for one in self.formats if one.twins))

    def _describe(
        self, part: SourcePart, group: Group, openings: Sequence[Format], opened: Sequence[Opened]
    ) -> Scanned:
        """Check the arrays of a source, whose files are open, each by its format."""
        plugin = self.plugin
        whole = joined(group, opened)
        head = Head(replace(group.files[0], name=part.name), openings[0].name, whole)
        with calling(plugin, part.name):
            # A general family has no other to leave a file to.
            claim = None
            if not plugin.general:
                claim = returned(Claim, plugin, "match", part.name, plugin.match(head))
            if claim is not None and claim.certainty == "no":
                return self._not_ours(part, claim)
            chosen = returned(Chosen, plugin, "choose", part.name, plugin.choose(head))
            sample_rows = returned(int, plugin, "typical_rows", part.name, plugin.typical_rows(head))
            memory = returned(int, plugin, "memory", part.name, plugin.memory(head))
        check_chosen(plugin, part.name, chosen)
        problems = list(chosen.problems)
        has_lengths = any(problem.kind == "length" for problem in problems)
        main = plugin.schema.table
        tables: dict[str, ScannedTable] = {}
        for table, columns in {main: chosen.columns, **chosen.tables}.items():
            picked = picked_of(picks_of(group, opened, whole, columns))
            mapped = getattr(plugin, "map", None) if table == main else None
            rows, wrong = check_columns(columns, head, picked, mapped)
            tables[table] = ScannedTable(picked, rows)
            problems += [problem for problem in wrong if problem.kind != "length" or not has_lengths]
        facts = {**whole.facts, **json_facts(plugin, "choose", part.name, chosen.facts)}
        problems += problems_of_facts(plugin.schema.per_source, head.file.name, facts)
        if not chosen.columns and not problems:
            problems.append(Problem(part.name, "holds no arrays", kind="missing"))
        extent = () if problems else extent_of(chosen.columns, head, problems)
        if problems:
            raise InputError(problems)
        arrays: dict[str, None] = {}
        for columns in (chosen.columns, *chosen.tables.values()):
            arrays |= dict.fromkeys(array_of(name, column) for name, column in columns.items())
        notes = dict.fromkeys(whole.notes[name] for name in arrays if name in whole.notes)
        attributes = opened[0].attributes(arrays.__contains__) if plugin.keeps_attributes else None
        return ScannedSource(
            formats=tuple([opening.name for opening in openings]),
            tables=tables,
            extent=extent,
            facts={} if attributes is not None else facts,  # single values are among the attributes
            of_family=tuple(chosen.facts.keys() - whole.facts.keys()),
            attributes=attributes,
            left_out=(*chosen.left_out.items(), *whole.left_out.items()),
            notes=(*notes, *chosen.notes),
            further=further_files(whole, part) if whole.further else (),
            sample_rows=sample_rows,
            forward_only=whole.forward_only,
            memory=whole.memory + memory,
        )

    def _not_ours(self, part: SourcePart, claim: Claim) -> Scanned:
        """Leave out a file of a folder. One that the user named is a problem."""
        if part.files[0] in map(Path.resolve, part.roots):
            raise InputError(Problem(part.name, claim.reason, "leave it out", "missing"))
        return ScannedSource(reason=claim.reason)

    def _says(self, method: str) -> bool:
        """Return whether the family has a method of its own."""
        return getattr(type(self.plugin), method) is not getattr(Family, method)

    @property
    def scan_identifies(self) -> bool:  # type: ignore[override]  # of the family
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

    def gather(self, parts: Parts, scanned: Sequence[ScannedSource]) -> Scan:
        if self._says("reconcile"):
            return self.plugin.reconcile(parts, scanned)
        # The ending of a file tells a format that the family names; a store records any other.
        return gather_sources(self.plugin, formats_of(self.plugin.formats), parts, scanned)

    def forms(
        self, parts: Parts, scanned: Sequence[ScannedSource]
    ) -> Iterator[tuple[str, Mapping[str, SourceColumn]]]:
        if self._says("forms"):
            for name, one in zip(parts.names, scanned, strict=True):
                if columns := self.plugin.forms(one):
                    yield name, columns
            return
        if self._says("reconcile"):
            yield from super().forms(parts, scanned)
        yield from forms_in(self.plugin.schema.table, parts, scanned)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Cut a source into samples, derive tables. Of a forward-only one, all rows are emitted meanwhile."""
        if self._says("prepare"):
            files = self._files_of(scan, source)
            with calling(self.plugin, scan.sources.names[source]):
                return self.plugin.prepare(scan, source, files, emit, folder)
        planned: Planned = scan.shared["planned"]
        schema = planned.schema
        origin: RowOrigin = scan.sources.details[source]
        name = scan.sources.names[source]
        facts: dict[str, AnyArray] = {}
        rows = {table: of_table.rows for table, of_table in origin.tables.items()}
        with self._reopened(scan, source) as opened:
            cuts: list[Cut] = []
            if schema.is_cut:
                begin_reading()
                with calling(self.plugin, name):
                    cuts = [returned(Cut, self.plugin, "cut", name, cut) for cut in self.plugin.cut(opened)]
            ragged = schema.ragged
            for table in scan.tables:
                owner, column = ragged.get(table.name, (table.name, ""))
                if owner in schema.derived:
                    continue
                if column:
                    place = origin.tables[owner].places.get(column)
                    key = "" if place is None else self._array_of(origin, place)
                    where = location_of(name, key)
                    count = origin.tables[owner].rows
                    with calling(self._formats_by_name[origin.formats[0]], name):
                        array = opened.all_arrays[key] if key else None
                        if array is not None and place is not None and place.field:
                            array = FieldOf(array, place.field)
                        counts = emit_ragged(array, where, count, table, emit)
                    facts[f"{SIZES}{table.name}"] = counts
                elif table.spilled:
                    self._emit(opened, name, origin, table, emit)
            if schema.derived:
                begin_reading()
                with calling(self.plugin, name):
                    facts |= emit_derived(self.plugin, opened, name, schema, emit)
                rows |= {table: int(facts[f"derived/{table}"][0]) for table in schema.derived}
            if schema.is_cut:
                facts |= facts_of(cuts, self.plugin, schema, name, rows)
        return facts

    def _emit(self, opened: Opened, name: str, origin: RowOrigin, table: Table, emit: Emit) -> None:
        count = origin.tables[table.name].rows
        row_bytes = sum(field.row_bytes for field in table.fields)
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, count, step):
            hi = min(count, lo + step)
            out = {}
            for key, form in table.columns().items():
                out[key] = np.zeros((hi - lo, *form.row_shape), form.dtype)
            self._fill(opened, name, origin, table.name, lo, hi, out)
            for column, rows in out.items():
                emit(table.name, column, rows)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Offsets and numbers of the samples, and what the files say."""
        return self.plugin.finish(scan, facts) if self._says("finish") else finalize_sources(scan, facts)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        name = scan.sources.names[source]
        if self._says("read"):
            files = self._files_of(scan, source)
            with calling(self.plugin, name):
                self.plugin.read(scan, source, files, table, lo, hi, out)
            return
        origin: RowOrigin = scan.sources.details[source]
        with self._reopened(scan, source) as opened:
            self._fill(opened, name, origin, table, lo, hi, out)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        files = self._files_of(scan, source)
        with calling(self.plugin, scan.sources.names[source]):
            self.plugin.read_planes(scan, source, files, table, lo, hi, out)

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        if self._says("pack"):
            self.plugin.pack(scan, table, column, source, rows, out)
        else:
            super().pack(scan, table, column, source, rows, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        if self._says("own"):
            return self.plugin.own(scan, table, source, fields)
        found = {column: field.own_form(source) for column, field in fields.items()}
        forms = {column: form for column, form in found.items() if form is not None}
        extent = getattr(scan.sources.details[source], "extent", ())
        if extent and table == scan.main_table:
            for column in scan.shared["planned"].schema.spatial:
                forms[column] = forms[column]._replace(row_shape=extent)
        return forms

    def _fill(
        self,
        opened: Opened,
        name: str,
        origin: RowOrigin,
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read rows of a table, by the family's own `rows` if it has one. Fill columns that are missing."""
        places = origin.tables[table].places
        for column in out.keys() - places.keys():
            out[column][...] = missing_value(out[column].dtype.name)
        if table == self.plugin.schema.table and type(self.plugin).rows is not Family.rows:
            begin_reading()
            with calling(self.plugin, name):
                block: Mapping[str, AnyArray] = dict(self.plugin.rows(opened, lo, hi))
            for column in out.keys() & places.keys():
                count = len(block.get(column, ()))
                if count != hi - lo:
                    message = f"gave {count} rows of {column}, expected {hi - lo}"
                    raise fault(self.plugin, "rows", name, message)
                rows = np.asarray(block[column])
                if rows.dtype.kind in TEXT_KINDS and places[column].classes:
                    rows = coded(rows, places[column].classes, location_of(name, column)._replace(row=lo))
                if rows.ndim != out[column].ndim or any(np.greater(rows.shape, out[column].shape)):
                    message = f"gave {column} of shape {rows.shape}, expected {out[column].shape}"
                    raise fault(self.plugin, "rows", name, message)
                within(out[column], rows.shape)[...] = rows
            return
        places = {
            column: places[column]._replace(array=self._array_of(origin, places[column]))
            for column in out.keys() & places.keys()
        }
        with calling(self._formats_by_name[origin.formats[0]], name):
            for column in [column for column, place in places.items() if place.is_text]:
                place = places.pop(column)
                texts = opened.all_arrays[place.array].objects(lo, hi)
                location = location_of(name, place.array)._replace(row=lo)
                out[column][...] = coded(texts, place.classes, location)
            fill(opened.arrays, out, places, lo, hi)

    def _array_of(self, origin: RowOrigin, place: RowPlace) -> str:
        """Return the name of an array in its source, whose files are read as one."""
        return origin.arrays[place.file] if origin.arrays else place.array

    @contextmanager
    def _reopened(self, scan: Scan, source: int) -> Iterator[Opened]:
        """Open the files of a source again, as one."""
        with ExitStack() as stack:
            files = self._files_of(scan, source)
            opened = [stack.enter_context(file.open()) for file in files]
            own_files = tuple([file.file for file in files])
            group = Group(scan.sources.names[source], own_files, scan.sources.details[source].arrays)
            yield joined(group, opened)

    def _files_of(self, scan: Scan, source: int) -> list[FileToOpen]:
        origin = scan.sources.details[source]
        paths = scan.sources.paths(source)
        files = []
        for number in range(len(origin.files)):
            opening, file = self._file_of(origin, paths, number)
            files.append(FileToOpen(file, opening, self.plugin.unlisted_groups))
        return files

    def _file_of(self, origin: Any, paths: Sequence[str], number: int) -> tuple[Format, SourceFile]:
        """Return a file of a source by its number, and its format, as the ``detail`` of every family says."""
        opening = self._formats_by_name[origin.formats[number]]
        return opening, source_file(paths, number, origin.files[number])


def fill(
    arrays: Mapping[str, Array],
    out: Mapping[str, AnyArray],
    places: Mapping[str, RowPlace],
    lo: int,
    hi: int,
) -> None:
    """Read rows of columns, each array once."""
    by_array: dict[tuple[str, int], dict[str, str]] = {}
    for column, place in places.items():
        step = place.step or max(1, hi - lo)
        by_array.setdefault((place.array, step), {})[column] = place.field
    for (name, step), fields in by_array.items():
        array = arrays[name]
        for first in range(lo, hi, step):
            targets = {column: out[column][first - lo :][:step] for column in fields}
            # Rows of a plain array are read in place, if they are not padded.
            target = next(iter(targets.values()))
            is_plain = set(fields.values()) == {""} and target.shape[1:] == array.shape[1:]
            rows = array.read(first, min(first + step, hi), target if is_plain else None)
            for column, field in fields.items():
                if rows is not targets[column]:
                    values = rows[field] if field else rows
                    np.copyto(within(targets[column], values.shape), values, casting="same_kind")


def _surest(file: SourceFile, claims: Mapping[Format, Claim]) -> tuple[Format, Claim]:
    """Return the only format that claims a file, or is sure of it, and its claim."""
    certain = {one: claim for one, claim in claims.items() if claim.certainty == "sure"}
    chosen = certain or claims
    if len(chosen) > 1:
        message = f"may be {' or '.join([one.name for one in chosen])}"
        raise file.problem(message, "remove the package of the format that it is not")
    ((one, claim),) = chosen.items()
    return one, claim


class Neighbours:
    """What lies near a file, as the formats of a family open it."""

    def __init__(self, converter: SeamConverter, folders: Folders, roots: tuple[Path, ...] = ()) -> None:
        self._converter = converter
        self.roots = roots
        self.has = folders.has
        self.holds = folders.holds

    def head(self, path: Path) -> Head | None:
        """See `Near.head`."""
        file = SourceFile(path, path.name, self.roots)
        try:
            with self._converter.opened(file) as (opening, opened):
                head = Head(file, opening.name, opened)
                list(head.arrays)  # which are listed once, while the file is open
                return head
        except InputError as error:
            if is_unreadable(error):
                raise
            return None


def _whole_names(format: Format) -> tuple[str, ...]:
    """Suffixes of a format that are names of files: they do not begin with a dot."""
    return tuple([suffix for suffix in format.suffixes if not suffix.startswith(".")])
