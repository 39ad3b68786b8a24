"""`append`: convert new sources into a sealed store of their own, and list it in a new version."""

from __future__ import annotations

import dataclasses
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from unistore.conversion.convert import executor_for, recorded_converter, source_paths
from unistore.conversion.identity import equal_sources_note
from unistore.conversion.keys import Inputs, SourceState, read_states
from unistore.conversion.report import Report
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.conversion.split_rule import SplitRule
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.detection import Claims
from unistore.converters.files.paths import name_ends
from unistore.converters.scan_types import Found, SourcePart, Stored
from unistore.data.default_kind import natural_kind
from unistore.data.kinds.protocol import MASK_SUFFIX, PRESENT_SUFFIX
from unistore.data.parts import DatasetPart, bind_parts
from unistore.errors import AddOptions, InputError, Problem, RunCommand, StoreError, first_few
from unistore.growing.growth import Growth, growing
from unistore.growing.same import same_sources
from unistore.growing.skipped_sources import including_mended, skipped_since
from unistore.progress import resolve_progress
from unistore.schemas.indices import main_bounds
from unistore.store.joined import OF_SOURCES
from unistore.store.reader import Store
from unistore.store.versions import OpenedPart, Part, describe_part
from unistore.system.progress import Progress, ProgressLike, begin_items
from unistore.system.types import Attributes, JsonObject, PathLike

if TYPE_CHECKING:
    from distributed import Client

    from unistore.converters.adapter.converter import Converter

_REPLACE = AddOptions(("--replace",), "to replace the old one")
_OTHER = "rename it if it is another source, or convert both into a new store from a folder that has both"
_ABOVE = "convert all sources into a new store, because the names of this one begin at a folder inside"
_FIX = "convert these sources into another store, then merge both with unistore compact STORE OTHER NEW"
_SOME_FIX = (
    "append them together with a source that has fewer columns or smaller rows, or convert all together"
)
# Options that select sources or follow from them, and may differ between the parts of a store
_MAY_DIFFER = ("codecs", "compacted", "exclude", "skipped", "split_below", "splits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Result of an append.

    Attributes
    ----------
    store : str
        The versioned store.
    version : int
        Number of the new version; of the newest one if no source was new.
    report : Report, optional
        Report of the conversion of the new sources. None: no source was new.
    skipped : tuple of str
        Names of sources that the store has already, or that were removed from it.
    replaced : tuple of str
        Names of sources that were replaced by new ones.
    """

    store: str
    version: int
    report: Report | None = None
    skipped: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class _Known(NamedTuple):
    """A source of the store."""

    store: Store
    number: int  # its number there
    size: int  # bytes of its files
    digest: bytes  # of its values; empty: it has no rows
    state: SourceState  # of its files when they were scanned


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """The sources that a store has, by name."""

    known: Mapping[str, _Known]  # those of the newest version
    removed: Mapping[str, _Known]  # those that only older versions have
    replaces: bool

    def without_given(self, found: Found, given: frozenset[str]) -> _Sources:
        """Return the sources without removed ones whose own files are given: these come back."""
        removed = dict(self.removed)
        for part in found.parts:
            if not given.isdisjoint(map(str, part.files)):
                removed.pop(part.name, None)
        return dataclasses.replace(self, removed=removed)

    def is_stored(self, part: SourcePart) -> bool:
        """Return whether a source has the name of one that is known, and surely its files, unchanged."""
        known = self.known.get(part.name) or self.removed.get(part.name)
        return known is not None and known.state.is_now(part.files)

    def has_like(self, file_name: str, size: int) -> bool:
        """Return whether a source of this file name, below whatever folder, and size is known."""
        return any(
            known.size == size and name.rpartition("/")[2] == file_name for name, known in self.known.items()
        )

    def check(self, inputs: Inputs) -> None:
        """Refuse sources that the store has, with other bytes."""
        scan = inputs.scan
        problems = []
        if scan.numbered:
            message = "have numbers as names, which change when sources are added"
            fix = "convert all of them together into a new store"
            problems.append(Problem("the sources", message, fix, "name"))
        for name, size in zip(scan.sources.names, inputs.sizes().tolist(), strict=True):
            known = self.known.get(name)
            # one of the same size is told apart by its values, once these were read
            if known is None or self.replaces or known.size == size:
                continue
            message = f"has {size:,} bytes, but the source of this name in the store has {known.size:,}"
            problems.append(Problem(name, message, (_REPLACE, _OTHER), "changed", name))
        if problems:
            raise InputError(problems)

    def same_rows(self, new: Store) -> tuple[int, ...]:
        """Return the sources of a new store that have the values of known ones. Refuse those with others.

        A removed source that has other values now is a new one.
        """
        by_name = {**self.removed, **self.known}
        rows = {name: row for row, (name, _) in enumerate(_source_rows(new)) if name in by_name}
        pairs = {name: (by_name[name], row) for name, row in rows.items()}
        same = self._same_values(new, pairs)
        problems = []
        for name in rows:
            if name in self.known and name not in same and not self.replaces:
                message = "has the name and size of a source in the store, but other values"
                problems.append(Problem(name, message, (_REPLACE, _OTHER), "changed", name))
        if problems:
            raise InputError(problems)
        return tuple(rows[name] for name in rows if name in same)

    def check_names(self, new: Store) -> None:
        """Refuse sources that the store has under another name, as names begin at another folder."""
        longer: dict[str, list[str]] = defaultdict(list)
        for other in self.known:
            for end in name_ends(other):
                longer[end].append(other)
        pairs = {}
        for row, (name, size) in enumerate(_source_rows(new)):
            if name in self.known:
                continue
            for other in (*longer.get(name, ()), *(end for end in name_ends(name) if end in self.known)):
                if self.known[other].size == size:
                    pairs[name, other] = self.known[other], row
        problems = []
        for name, other in self._same_values(new, pairs):
            message = f"has the same values as '{other}', which the store has already"
            is_above = len(name) > len(other)
            folder = _ABOVE if is_above else "give the folder from which the store was converted"
            fixes = folder, AddOptions(("--exclude", name))
            problems.append(Problem(name, message, fixes, "changed", name))
        if problems:
            raise InputError(problems)

    def copies(
        self, new: Store, skipped: Collection[str], replaced: Collection[str]
    ) -> list[tuple[str, str]]:
        """Return the names of new sources that have the values of known ones, each with that of the known."""
        kept = {name: known for name, known in self.known.items() if name not in replaced}
        return [(name, other) for name, other in _equal_in(kept, new) if name not in skipped]

    def copies_of_removed(self, new: Store, skipped: Collection[str]) -> list[tuple[str, str]]:
        """Return the names of new sources that have the values of removed ones of other names, and those."""
        pairs = _equal_in(self.removed, new)
        return [(name, other) for name, other in pairs if name not in (other, *skipped)]

    def _same_values(self, new: Store, pairs: Mapping[_Key, tuple[_Known, int]]) -> list[_Key]:
        """Return the keys of the pairs, a known source and the number of a new one, of the same values."""
        by_store: dict[Store, dict[_Key, tuple[int, int]]] = defaultdict(dict)
        for key, (known, row) in pairs.items():
            by_store[known.store][key] = known.number, row
        same: set[_Key] = set()
        for store, numbers in by_store.items():
            are_same = same_sources(store, new, [*numbers.values()])
            same.update(key for key, is_same in zip(numbers, are_same, strict=True) if is_same)
        return [key for key in pairs if key in same]


_Key = TypeVar("_Key")


def _source_rows(store: Store) -> Iterable[tuple[str, int]]:
    return zip(store.text("sources/path"), store.array("sources/bytes").read().tolist(), strict=True)


def _source_digests(store: Store) -> list[bytes]:
    """Return the digest of the values of each source, empty of those without rows."""
    digests = store.array("sources/hash").read()
    rows = np.diff(main_bounds(store)).tolist()
    return [digest.tobytes() if count else b"" for digest, count in zip(digests, rows, strict=True)]


def _equal_in(sources: Mapping[str, _Known], new: Store) -> Iterator[tuple[str, str]]:
    """Yield the name of each new source that has the values of one of these, and the name of that one."""
    by_digest: dict[bytes, str] = {}
    for name, known in sources.items():
        if known.digest:
            by_digest.setdefault(known.digest, name)
    for name, digest in zip(new.text("sources/path"), _source_digests(new), strict=True):
        if digest in by_digest:
            yield name, by_digest[digest]


def known_sources(parts: Iterable[OpenedPart]) -> tuple[dict[str, _Known], dict[str, _Known]]:
    """Return the sources that the newest version has, and other sources of the parts, by name.

    Parameters
    ----------
    parts : iterable of OpenedPart
        The parts of the newest version, and of older ones, the oldest first.
    """
    known: dict[str, _Known] = {}
    removed: dict[str, _Known] = {}
    for store, removed_numbers in parts:
        names_and_sizes = [*_source_rows(store)]
        states = read_states(store.storage, store.root.seal.digest, len(names_and_sizes)).states
        rows = zip(names_and_sizes, _source_digests(store), states, strict=True)
        left_out = frozenset(removed_numbers)
        for row, ((name, size), digest, state) in enumerate(rows):
            sources = removed if row in left_out else known
            sources[name] = _Known(store, row, size, digest, state)
    return known, {name: source for name, source in removed.items() if name not in known}


def append(
    sources: PathLike | Iterable[PathLike],
    store: PathLike,
    *,
    replace: bool = False,
    check: PathLike | Iterable[PathLike] = (),
    exclude: Sequence[str] = (),
    restart: bool = False,
    work: PathLike | None = None,
    workers: int = 0,
    scheduler: str | Client | None = None,
    memory: str | int | None = None,
    on_error: str = "fail",
    progress: ProgressLike = None,
) -> Appended:
    """Add new sources to a store, as its next version. Stored data are neither changed nor read again.

    Family, options and the rule for splits stay the same. A single store becomes a versioned store: a
    folder of versions and of sealed stores, the first of which is the old store.

    Parameters
    ----------
    sources : path or iterable of paths
        Files and folders. Names of sources begin at their common folder, so give the folder that was
        converted, or files in it. Sources that the store has are skipped: by name if the size and times
        of their files are unchanged, otherwise by their values, which are then read. Removed sources are
        skipped, too, unless you give their files or their values have changed.
    store : path or URL
        Folder of the store, or its URL in an object store.
    replace : bool, default False
        True: a changed source replaces the stored one with the same name. False: a changed source is an
        error.
    check : path or iterable of paths, optional
        Folders with the sources of the store. If one of them is missing there or has changed, that is an
        error.
    exclude : sequence of str, default ()
        Names of sources to skip.
    restart : bool, default False
        Discard an unfinished append instead of continuing it.
    work, workers, scheduler, memory, on_error, progress
        As in `unistore.convert`.

    Returns
    -------
    Appended
        The new version, and the skipped and replaced sources.

    Raises
    ------
    InputError
        If sources have problems, or the store has them with other values. If columns differ from those of
        the store. If the splits of the store depend on all sources (``exact:``, or a list).
    ConversionError
        If writing failed. The same call continues.

    See Also
    --------
    unistore.remove : A version without some sources.
    unistore.versions : List versions and name them.
    unistore.compact : One single store of a version.

    Examples
    --------
    >>> appended = unistore.append("recordings/", "train.zarr")  # doctest: +SKIP
    >>> appended.version, len(appended.skipped)  # doctest: +SKIP
    (2, 120)
    """
    paths = source_paths(sources)
    with resolve_progress(progress) as callbacks, growing(store, work) as growth:
        begin_items(callbacks, "comparing with the store")
        parts = growth.opened.parts_of_all_versions()
        sources_by_name, removed = known_sources(parts)
        known = _Sources(known=sources_by_name, removed=removed, replaces=replace)
        options = growth.stores[0].read_root().options
        settings = Settings(
            codec=options.get("codec", "auto"),
            split=_split_rule(growth, options),
            overwrite=True,
            restart=restart,
            work=growth.place.build_folder or work,
            workers=workers,
            scheduler=scheduler,
            memory=memory,
            on_error=on_error,
        )
        converter = recorded_converter(growth.stores[0].family, options)
        if skipped := skipped_since([part.store for part in parts]):
            converter = including_mended(converter, paths, skipped)
        if check:
            _check_sources(converter, source_paths(check), known, growth.store)
        return _append(growth, converter, paths, known, exclude, settings, callbacks)


def _append(
    growth: Growth,
    converter: Converter,
    paths: Sequence[Path],
    known: _Sources,
    exclude: Sequence[str],
    settings: Settings,
    progress: Progress,
) -> Appended:
    store = growth.store
    claims = Claims(paths, converter)
    found = _sources_under(converter, claims)
    known = known.without_given(found, claims.listing.given)
    stored_parts = [part for part in found.parts if known.is_stored(part)]
    skipped = tuple(part.name for part in stored_parts)
    exclusion = Exclusion(converter.exclude)
    names = frozenset(skipped)
    if skipped and all(part.name in names or exclusion.covers(part.name) for part in found.parts):
        return Appended(store=store, version=growth.version.number, skipped=skipped)
    files: set[str] = set()
    for part in stored_parts:
        files.update(map(str, part.files))
    excluded = frozenset(converter.exclude)
    stored = Stored(names, frozenset(files), excluded, found, known.has_like)
    converter = converter.excluding((*dict.fromkeys([*converter.exclude, *exclude]),))
    with executor_for(settings, converter.family, progress) as executor:
        report = run(
            converter,
            paths,
            growth.new_store,
            settings,
            executor=executor,
            claims=claims,
            stored=stored,
            check=known.check,
            progress=progress,
        )
    new = growth.stored(Store(growth.new_store))
    try:
        same = known.same_rows(new)
        known.check_names(new)
        if len(same) < len(new.array("sources/bytes")):
            _check_forms(growth.stores[0], new)
    except InputError:
        growth.place.clear()
        raise
    new_names = new.text("sources/path")
    skipped += tuple(new_names[row] for row in same)
    if len(same) == len(new_names):
        return Appended(store=store, version=growth.version.number, skipped=skipped)
    replaced = tuple(name for name in new_names if name in known.known and name not in skipped)
    schemas = list(growth.version.schemas)
    parts = without_sources(growth, [known.known[name] for name in replaced], schemas)
    parts.append(describe_part(new, schemas, same))
    notes = report.notes
    if came_back := [name for name in new_names if name in known.removed and name not in skipped]:
        notes = (*notes, _came_back_note(came_back, store))
    if renamed := known.copies_of_removed(new, skipped):
        notes = (*notes, _renamed_note(renamed, store))
    if copies := known.copies(new, skipped, replaced):
        fix = _removes_again(store, copies[0][0])
        note = equal_sources_note(
            copies, are_split=len(new.split_names()) > 1, where=" in the store", fix=fix
        )
        notes = (*notes, note)
    version = growth.commit(parts, schemas, new)
    report = dataclasses.replace(report, destination=f"{store}/{parts[-1].key}", notes=notes)
    return Appended(store=store, version=version.number, report=report, skipped=skipped, replaced=replaced)


def _came_back_note(names: Sequence[str], store: str) -> str:
    count = "a removed source has" if len(names) == 1 else f"{len(names):,} removed sources have"
    return f"{count} other values now and came back: {first_few(names)}; {_removes_again(store, names[0])}"


def _renamed_note(pairs: Sequence[tuple[str, str]], store: str) -> str:
    count = "a source has" if len(pairs) == 1 else f"{len(pairs):,} sources have"
    shown = first_few([f"{name} = {other}" for name, other in pairs])
    return f"{count} the values of a removed one: {shown}; {_removes_again(store, pairs[0][0])}"


def _removes_again(store: str, name: str) -> str:
    end_of_options = ("--",) if name.startswith("-") else ()
    return f"{shlex.join(('unistore', 'remove', store, *end_of_options, name))} removes it again"


def _sources_under(converter: Converter, claims: Claims) -> Found:
    # What is wrong is told by the conversion
    with suppress(InputError):
        return converter.find(claims.listing, Exclusion(()))
    return Found(parts=())


def _split_rule(growth: Growth, options: Attributes) -> SplitRule | None:
    try:
        rule = SplitRule.recorded(options)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{growth.store}: its options do not state how it was converted: {error}"
        raise StoreError(msg) from error
    if rule is None or (rule.method == "hash" and rule.taken is None):
        return rule
    message = "has splits from exact shares or from a list, which new sources could change"
    fix = "convert all sources together, with --split train=0.8,val=0.2, which can grow"
    raise InputError(Problem(growth.store, message, fix, "split"))


def _check_sources(converter: Converter, folders: Sequence[Path], known: _Sources, store: str) -> None:
    claims = Claims(folders, converter)
    found = {part.name: part for part in _sources_under(converter, claims).parts}
    problems = []
    for name in known.known:
        if name not in found:
            problems.append(
                Problem(name, f"is not in {first_few([*map(str, folders)])}", "", "missing", name)
            )
        elif not known.replaces and not known.is_stored(found[name]):
            message = "has another size or modification time than when it was converted"
            words = ("verify", store, "--against", *map(str, folders))
            fixes = _REPLACE, RunCommand(words, "to compare its values")
            problems.append(Problem(name, message, fixes, "changed"))
    if problems:
        raise InputError(problems)


def _check_forms(first: Store, new: Store) -> None:
    """Refuse a store that is not of the same options and columns as the first part."""
    kind = natural_kind(first)
    parts = [DatasetPart(store, kind, None, store.path) for store in (first, new)]
    fields = [part.kind.select(part.store, None) for part in parts]
    problems = []
    for key in sorted({*fields[0]}.symmetric_difference(fields[1])):
        has_it = "the store has" if key in fields[0] else "the new sources have"
        is_of_some = key in fields[0] and key.endswith((PRESENT_SUFFIX, MASK_SUFFIX))
        fix = _SOME_FIX if is_of_some else _FIX
        problems.append(Problem(f"field {key!r}", f"only {has_it} it", fix, "fields"))
    if problems:
        raise InputError(problems)
    bind_parts(parts, fields[0], fits=True)
    problems = differing_options(first, new)
    for path in filter(first.has, new.paths()):
        if _contradict(first.array(path).attributes, new.array(path).attributes):
            problems.append(
                Problem(path, "has other attributes in the new sources than in the store", _FIX, "attributes")
            )
    if problems:
        raise InputError(problems)


def differing_options(first: Store, new: Store, ignored: Collection[str] = ()) -> list[Problem]:
    """Return a problem for each option that differs between two stores.

    Options that sources determine are ignored.
    """
    before = _plain_options(first)
    now = _plain_options(new)
    problems = []
    for name in sorted({*before, *now}.difference(ignored)):
        if before.get(name) != now.get(name):
            message = f"is {before.get(name)!r} in {first.path}, but {now.get(name)!r} in {new.path}"
            problems.append(Problem(f"option {name}", message, _FIX, "option"))
    return problems


def _plain_options(store: Store) -> JsonObject:
    options = store.root.options
    merged = {**options, **options.get("found", {})}
    return {name: value for name, value in merged.items() if name not in ("found", *_MAY_DIFFER)}


def _contradict(before: Any, now: Any) -> bool:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        common = (before.keys() & now.keys()).difference(OF_SOURCES)
        return any(_contradict(before[name], now[name]) for name in common)
    return bool(before != now)


def without_sources(growth: Growth, sources: Iterable[_Known], schemas: list[Attributes]) -> list[Part]:
    """Return the parts of a version without some of its sources. Parts without any source are left out."""
    removed: dict[Store, set[int]] = defaultdict(set)
    for source in sources:
        removed[source.store].add(source.number)
    parts = []
    for store, part in zip(growth.stores, growth.version.parts, strict=True):
        if store in removed:
            left_out = tuple(sorted({*part.removed, *removed[store]}))
            if len(left_out) < part.sources:
                parts.append(describe_part(store, schemas, left_out))
        else:
            parts.append(part)
    return parts
