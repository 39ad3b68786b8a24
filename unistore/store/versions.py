"""Versions of a versioned store: documents that list sealed stores, and the stores that a path opens."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from unistore.errors import CorruptionError, InputError, NoStoreError, Problem, StoreError, first_few
from unistore.remote.url import BUCKETS, local_path, parse_url, place_of
from unistore.schemas.indices import sample_sources
from unistore.schemas.recorded_rules import Seal, StoreRoot
from unistore.schemas.tables import OF_SOME
from unistore.store.listing import (
    Listing,
    describe_arrays,
    extended,
    listing_document,
    parse_listing,
)
from unistore.store.manifest import (
    GrammarError,
    parse_count,
    parse_digest,
    parse_object,
    parse_root,
    parse_split_names,
    root_digest,
    sign_root,
)
from unistore.store.names import (
    FIRST_VERSION,
    FORMAT_VERSION,
    MANIFEST,
    PARTS,
    ROOT,
    SIDE_TABLES,
    TAGS,
    VERSIONS,
    part_folder,
)
from unistore.store.reader import Store, open_storage, with_copies
from unistore.system.types import Attributes, JsonObject, VersionLike
from unistore.zarr3.documents import DocumentError, is_list_of, parse_document, shown
from unistore.zarr3.storage import MAX_SHARED_FILES, AbsentError, OpenFiles, Storage

VERSION_FORMAT = 1
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_VERSION_FILE = re.compile(r"[1-9][0-9]{0,8}\.json")
_TAG_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A sealed store of a version, with the sources that the version does not have any more.

    Attributes
    ----------
    seal : Seal
        Seal of the store.
    schema : int
        Number of its schema in the version.
    sources, samples : int
        Number of sources and samples of the sealed store.
    removed : tuple of int
        Numbers of the removed sources, ascending.
    left : int
        Number of samples without those of removed sources.
    splits : mapping of str to int
        Number of these samples by split.
    """

    seal: Seal
    schema: int
    sources: int
    samples: int
    removed: tuple[int, ...] = ()
    left: int
    splits: Mapping[str, int]

    @property
    def key(self) -> str:
        """Name of its folder in the versioned store."""
        return part_folder(self.seal.digest).rstrip("/")


_SEAL_DIGESTS = ("digest", "content_digest", "root")
_SEAL_COUNTS = ("files", "bytes")
_COUNTS = ("schema", "sources", "samples", "left")


def _parts_document(parts: Sequence[Part]) -> JsonObject:
    """Return parts column by column, of which a thousand are parsed in milliseconds."""
    document: JsonObject = {}
    for name in (*_SEAL_DIGESTS, *_SEAL_COUNTS):
        document[name] = [getattr(part.seal, name) for part in parts]
    for name in _COUNTS:
        document[name] = [getattr(part, name) for part in parts]
    document["removed"] = {str(number): part.removed for number, part in enumerate(parts) if part.removed}
    names = dict.fromkeys(chain.from_iterable(part.splits for part in parts))
    document["splits"] = {name: [part.splits.get(name) for part in parts] for name in names}
    return document


def _parse_parts(value: object, schemas: int) -> tuple[Part, ...]:
    """Parse the parts of a version. Raises `GrammarError`."""
    members = parse_object(value, "parts")
    columns = {name: _column(members, name, parse_digest) for name in _SEAL_DIGESTS}
    columns |= {name: _column(members, name, parse_count) for name in (*_SEAL_COUNTS, *_COUNTS)}
    removed = parse_object(members.get("removed"), "removed")
    splits = parse_object(members.get("splits"), "splits")
    parse_split_names([*splits], "splits")
    counts = {name: _column(splits, name, _parse_count_or_none) for name in splits}
    lengths = {len(column) for column in chain(columns.values(), counts.values())}
    if len(lengths) > 1 or 0 in lengths:
        raise GrammarError("there are no parts, or the columns of parts differ in length")
    parts = []
    for number in range(lengths.pop()):
        row = {name: column[number] for name, column in columns.items()}
        seal = {name: row.pop(name) for name in (*_SEAL_DIGESTS, *_SEAL_COUNTS)}
        of_split = {name: column[number] for name, column in counts.items()}
        part = Part(
            seal=Seal(manifest=MANIFEST, **seal),
            removed=_parse_removed(removed.get(str(number), []), row["sources"]),
            splits={name: count for name, count in of_split.items() if count is not None},
            **row,
        )
        if part.schema >= schemas or part.left > part.samples:
            msg = f"part {part.key} refers to a schema or samples that do not exist"
            raise GrammarError(msg)
        parts.append(part)
    return tuple(parts)


def _column(members: Attributes, name: str, parse: Callable[[object, str], Any]) -> list[Any]:
    column = members.get(name)
    if not isinstance(column, list):
        msg = f"{name} is {shown(column)}, expected a list with one value for each part"
        raise GrammarError(msg)
    return [parse(item, name) for item in column]


def _parse_count_or_none(value: object, member: str) -> int | None:
    return None if value is None else parse_count(value, member)


def _parse_removed(value: object, sources: int) -> tuple[int, ...]:
    if not is_list_of(value, int) or sorted({*value}) != value or not all(0 <= n < sources for n in value):
        msg = f"removed is {shown(value)}, expected ascending numbers of sources"
        raise GrammarError(msg)
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a versioned store.

    Attributes
    ----------
    number : int
        Number, from 1.
    parent : str or None
        Checksum of the version before. None: it is the first.
    schemas : tuple of mapping
        Family, tables and fields of the parts.
    parts : tuple of Part
        The sealed stores.
    arrays : Listing
        The arrays of the parts.
    """

    number: int
    parent: str | None
    schemas: tuple[Attributes, ...]
    parts: tuple[Part, ...]
    arrays: Listing

    @cached_property
    def data(self) -> bytes:
        """The document, signed."""
        document = {
            "format_version": VERSION_FORMAT,
            "number": self.number,
            "parent": self.parent,
            "schemas": list(self.schemas),
            "parts": _parts_document(self.parts),
            **listing_document(self.arrays),
            "root": "0" * 32,
        }
        return sign_root(json.dumps(document, allow_nan=False).encode())

    @property
    def digest(self) -> str:
        return root_digest(self.data)

    @property
    def samples(self) -> int:
        return sum(part.left for part in self.parts)

    @property
    def sources(self) -> int:
        return sum(part.sources - len(part.removed) for part in self.parts)

    @cached_property
    def split_names(self) -> list[str]:
        names: dict[str, int] = {}
        for part in self.parts:
            names |= part.splits
        return [*names]

    @classmethod
    def parse(cls, data: bytes, number: int) -> Version:
        """Parse a document.

        Raises
        ------
        GrammarError, DocumentError
            If it is not valid.
        """
        document = parse_document(data)
        if document.get("format_version") != VERSION_FORMAT:
            written = shown(document.get("format_version"))
            msg = f"it has format {written}, but this unistore reads {VERSION_FORMAT}; install a matching one"
            raise GrammarError(msg)
        if not root_digest(data) or document.get("number") != number:
            raise GrammarError("its checksum or number does not match its content")
        schemas = document.get("schemas")
        parent = document.get("parent")
        if not is_list_of(schemas, dict) or not isinstance(parent, str | None):
            raise GrammarError("it has no schemas")
        parts = _parse_parts(document.get("parts"), len(schemas))
        version = cls(
            number=number,
            parent=parent,
            schemas=tuple(schemas),
            parts=parts,
            arrays=parse_listing(document, len(parts)),
        )
        version.root(parts[0])  # raises if a schema is not valid
        version.__dict__["data"] = data
        return version

    def root(self, part: Part) -> StoreRoot:
        """Return what the version states about a part, in the form of the root of a store."""
        return replace(self._roots[part.schema], sample_count=part.samples, seal=part.seal)

    @cached_property
    def _roots(self) -> dict[int, StoreRoot]:
        """By the number of its schema, the root of one of the parts that have it."""
        one_of_each = {part.schema: part for part in self.parts}
        return {number: parse_root(self._root_document(part)) for number, part in one_of_each.items()}

    def _root_document(self, part: Part) -> JsonObject:
        schema = self.schemas[part.schema]
        samples = {"table": schema.get("table"), "count": part.samples}
        described = {"format_version": FORMAT_VERSION, "samples": samples, "seal": part.seal.to_json()}
        return {**schema, **described}


def describe_part(store: Store, schemas: list[Attributes], removed: tuple[int, ...] = ()) -> Part:
    """Return the description of a store as a part, and append its schema to `schemas` if it is new."""
    root = store.root
    fields = {}
    for path, field in root.fields.items():
        fields[path] = {name: value for name, value in field.members.items() if name != "amplification"}
    schema = {
        "family": root.family,
        "table": root.sample_table,
        "main_table": root.main_table,
        "tables": root.tables,
        "kinds": root.kinds,
        "package": root.package._asdict(),
        "fields": fields,
    }
    if root.options.get("columns") == "union":
        # Which columns some sources lack, or have in smaller shapes, decides which keys samples have
        uneven = [path for path in fields if not OF_SOME.isdisjoint(store.array(path).attributes)]
        schema |= {"options": {"columns": "union"}, "uneven": sorted(uneven)}
    if schema not in schemas:
        schemas.append(schema)
    kept = np.flatnonzero(~np.isin(sample_sources(store), removed))
    splits = {}
    if store.has("splits/code"):
        codes, names = store.splits()
        splits = {name: int(np.count_nonzero(codes[kept] == code)) for code, name in enumerate(names)}
    return Part(
        seal=root.seal,
        schema=schemas.index(schema),
        sources=len(store.array("sources/bytes")),
        samples=store.sample_count,
        removed=removed,
        left=len(kept),
        splits=splits,
    )


def first_version(store: Store) -> Version:
    """Return the version of a store that never grew."""
    schemas: list[Attributes] = []
    part = describe_part(store, schemas)
    arrays = extended({}, 0, [describe_arrays(store)])
    return Version(number=1, parent=None, schemas=tuple(schemas), parts=(part,), arrays=arrays)


class GrownStore:
    """A versioned store: a folder of versions, or its URL.

    Parameters
    ----------
    path : str
        Folder or URL.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._storage = open_storage(path)

    def numbers(self) -> list[int]:
        """Return the numbers of the versions, ascending."""
        names = self._names(VERSIONS)
        if names is not None:
            return sorted(int(name.removesuffix(".json")) for name in names if _VERSION_FILE.fullmatch(name))
        number = 1
        while self._storage.size(f"{VERSIONS}/{number + 1}.json") is not None:
            number += 1
        return list(range(1, number + 1))

    def has_other_parts(self, version: Version) -> bool:
        """Return whether it has parts that a version lacks. True in a bucket, whose files are not listed."""
        if local_path(self.path) is None:
            return True
        keys = {part.key for part in version.parts}
        return any(f"{PARTS}/{name}" not in keys for name in self._names(PARTS) or [])

    def tags(self) -> dict[str, int]:
        """Return the number of each named version, by name. Empty for a store on a web server."""
        names = self._names(TAGS) or []
        return {name: self._tagged(name) for name in names if _TAG.fullmatch(name)}

    def _names(self, folder: str) -> list[str] | None:
        """Return the names of files in a folder, None on a web server, which lists none."""
        root = local_path(self.path)
        if root is not None:
            return sorted(os.listdir(root / folder)) if (root / folder).is_dir() else []  # noqa: PTH208
        if parse_url(self.path).scheme not in BUCKETS:
            return None
        from unistore.remote.client import ObjectClient

        return sorted(ObjectClient(f"{self.path}/{folder}").list())

    def _tagged(self, name: str) -> int:
        text = self._storage.get(f"{TAGS}/{name}", _TAG_BYTES).strip()
        if not text.isdigit():
            msg = f"{self.path}: {TAGS}/{name} is damaged: it does not contain the number of a version"
            raise CorruptionError(msg)
        return int(text)

    def number_of(self, version: VersionLike) -> int:
        """Return the number of a version, given its number or name. None: the newest."""
        numbers = self.numbers()
        if version is None:
            return numbers[-1]
        if isinstance(version, str) and _TAG.fullmatch(version):
            try:
                version = self._tagged(version)
            except AbsentError as error:
                tags = first_few([*self.tags()])
                fix = f"use one of {tags}" if tags else "use the number of a version"
                raise _no_version(self.path, version, fix) from error
        if not str(version).isdecimal() or int(version) not in numbers:
            raise _no_version(self.path, version, f"use a version from {numbers[0]} to {numbers[-1]}")
        return int(version)

    def read(self, version: VersionLike = None) -> Version:
        """Read a version, given its number or name. None: the newest."""
        return self.read_number(self.number_of(version))

    def read_number(self, number: int) -> Version:
        """Read a version that exists."""
        key = f"{VERSIONS}/{number}.json"
        try:
            return Version.parse(self._storage.get(key), number)
        except (GrammarError, DocumentError) as error:
            fix = "restore it from a copy, or open another version"
            msg = f"{self.path}: {key} is damaged: {error}. Fix: {fix}"
            raise CorruptionError(msg) from error

    def store(self, version: Version, part: Part, files: OpenFiles, **cache: Any) -> Store:
        """Return a part of a version, which opens on first use.

        Parameters
        ----------
        version : Version
            The version.
        part : Part
            One of its parts.
        files : OpenFiles
            The files that it and other stores keep open together.
        **cache
            Arguments of `Store` for local copies.
        """
        folder = f"{self.path.rstrip('/')}/{part.key}"
        return Store(folder, files=files, listed=version.root(part), **cache)


def _no_version(path: str, version: object, fix: str) -> InputError:
    return InputError(Problem(path, f"has no version {version!r}", fix, "version"))


def check_tag(name: str) -> None:
    """Raise InputError if a text cannot name a version."""
    if not _TAG.fullmatch(name):
        fix = "use at most 64 letters, digits, '.', '_' and '-', beginning with a letter"
        raise InputError(Problem("--tag", f"{name!r} cannot be the name of a version", fix, "option"))


class OpenedPart(NamedTuple):
    """A store of a version, and the numbers of its sources that the version does not have any more."""

    store: Store
    removed: Collection[int]


class OpenedStores(NamedTuple):
    """The stores that a path opens.

    Attributes
    ----------
    path : str
        The path, as it was given.
    place : str
        The path, valid from any working directory.
    stores : tuple of Store
        The stores.
    version : Version, optional
        The version that lists them. None: it is a single store.
    storage : Storage, optional
        Storage of the version, in which each part has its folder.
    """

    path: str
    place: str
    stores: tuple[Store, ...]
    version: Version | None = None
    storage: Storage | None = None

    @property
    def parts(self) -> tuple[Part | None, ...]:
        """Description of each store in the version."""
        return (None,) * len(self.stores) if self.version is None else self.version.parts

    @property
    def removed(self) -> tuple[tuple[int, ...], ...]:
        """For each store, the numbers of the removed sources."""
        return tuple(() if part is None else part.removed for part in self.parts)

    @property
    def counts(self) -> tuple[int, ...]:
        """For each store, the number of samples that the version has."""
        if self.version is None:
            return (self.stores[0].sample_count,)
        return tuple(part.left for part in self.version.parts)

    def opened_parts(self) -> list[OpenedPart]:
        """Return the stores of the version. Two of them may be the same."""
        return list(map(OpenedPart, self.stores, self.removed))

    def parts_of_all_versions(self) -> list[OpenedPart]:
        """Return the stores of the version and of older ones, the oldest first."""
        grown = GrownStore(self.place)
        if self.version is None or not grown.has_other_parts(self.version):
            return self.opened_parts()
        own: dict[str, list[OpenedPart]] = defaultdict(list)
        for opened, listed in zip(self.opened_parts(), self.version.parts, strict=True):
            own[listed.key].append(opened)
        every: dict[str, list[OpenedPart]] = {}
        files = OpenFiles(MAX_SHARED_FILES)
        for version in map(grown.read_number, range(1, self.version.number)):
            for part in version.parts:
                if part.key not in every:
                    store = grown.store(version, part, files)
                    every[part.key] = own.get(part.key, [OpenedPart(store, range(part.sources))])
        return [*chain.from_iterable((every | own).values())]

    def row_of(self, sample: int) -> tuple[Store, int]:
        """Return the store of a sample of the version, and its row there. IndexError if there is none."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, sample, "right"))
        store = self.stores[number]
        row = sample - int(ends[number]) + self.counts[number]
        if self.removed[number]:
            is_left = ~np.isin(sample_sources(store), self.removed[number])
            row = int(np.flatnonzero(is_left)[row])
        return store, row

    @property
    def may_have_side_tables(self) -> bool:
        """Whether a folder of added columns exists next to a store, or may exist."""
        folder = local_path(self.stores[0].place)
        if self.version is None or folder is None:
            return True
        names = os.listdir(folder.parent) if folder.parent.is_dir() else []  # noqa: PTH208  of many parts
        return any(name.endswith(SIDE_TABLES) for name in names)


def find_grown(path: str) -> GrownStore | None:
    """Return the versioned store at a path, or None."""
    folder = local_path(path)
    if folder is None:
        storage = open_storage(path)
        is_grown = storage.size(FIRST_VERSION) is not None and storage.size(ROOT) is None
        place: str = getattr(storage, "place", path)  # of the Hub, the commit that was asked
        return GrownStore(place) if is_grown else None
    is_grown = (folder / FIRST_VERSION).is_file() and not (folder / ROOT).exists()
    return GrownStore(os.fspath(folder)) if is_grown else None


def open_stores(path: str, version: VersionLike = None, **cache: Any) -> OpenedStores:
    """Open the stores of a path: the single store, or the parts of a version, which open on first use.

    Parameters
    ----------
    path : str
        Folder or URL.
    version : int or str, optional
        Number or name of the version. None: the newest.
    **cache
        Arguments of `Store` for local copies.

    Raises
    ------
    StoreError
        If there is no store, or the version is damaged.
    InputError
        If there is no such version.
    """
    try:
        store = Store(path, **cache)
    except StoreError as error:
        # A server that denied the root, or that has another one, would not answer otherwise for a version
        is_absent = local_path(path) is not None or isinstance(error, NoStoreError)
        grown = find_grown(path) if is_absent else None
        if grown is None:
            raise
        listed = grown.read(version)
        files = OpenFiles(MAX_SHARED_FILES)
        stores = tuple(grown.store(listed, part, files, **cache) for part in listed.parts)
        storage = open_storage(grown.path, files)
        place = place_of(path) if local_path(path) is not None else grown.path
        return OpenedStores(path, place, stores, listed, with_copies(storage, **cache))
    if version not in (None, 1, "1"):
        raise _no_version(path, version, "use 1, the only version of a store that never grew")
    return OpenedStores(path, store.place, (store,))
