"""Read a sealed store: arrays by path, attributes of groups, texts, splits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unistore.errors import CorruptionError, NoStoreError, StoreError, UnistoreError
from unistore.remote.url import BUCKETS, local_folder, local_path, place_of
from unistore.schemas import indices
from unistore.schemas.recorded_rules import MORE, RecordedSpecs, StatedRules, StoreRoot, with_side_table
from unistore.store.manifest import (
    MANIFEST_LIMIT,
    OF_SCHEMA,
    GrammarError,
    parse_root,
    parse_side,
    parse_split_names,
    repeated_documents,
    root_digest,
)
from unistore.store.names import (
    BUILD_MARK,
    FIRST_VERSION,
    FORMAT_VERSION,
    PARTS,
    ROOT,
    SIDE_TABLES,
    build_folder,
    folder_beside,
    part_folder,
)
from unistore.system.machine import absolute
from unistore.system.sizes import parse_bytes
from unistore.system.types import AnyArray, JsonObject, PathLike, UInt8s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.documents import DocumentError, parse_document, shown
from unistore.zarr3.storage import (
    DOCUMENT_LIMIT,
    AbsentError,
    LocalStorage,
    OpenFiles,
    Storage,
    check_tree,
    replaced,
)

if TYPE_CHECKING:
    import zarr


# Default size of the folder of local copies.
CACHE_LIMIT = "20GB"


def open_storage(path: PathLike, files: OpenFiles | None = None) -> Storage:
    """Return the storage of a folder or URL. Nothing is opened."""
    folder = local_folder(path)
    if folder is not None:
        return LocalStorage(folder, files)
    from unistore.remote.storage import ObjectStorage

    return ObjectStorage(os.fspath(path))


def with_copies(
    storage: Storage,
    manifest: str | None = None,
    *,
    cache_dir: PathLike | None = None,
    cache_limit: str | int = CACHE_LIMIT,
) -> Storage:
    """Return a storage that keeps local copies of what is read.

    Parameters
    ----------
    storage : Storage
        The storage.
    manifest : str, optional
        Checksum of its manifest. None: of each part, whose folder begins a key.
    cache_dir : path, optional
        Local folder for copies. None: the same storage, without copies.
    cache_limit : str or int, default "20GB"
        Limit for all copies in `cache_dir`.
    """
    if cache_dir is None:
        return storage
    from unistore.store.shard_cache import CachedStorage, ShardCache

    copies = ShardCache(cache_dir, parse_bytes(cache_limit, "cache_limit"))
    return CachedStorage(storage, copies, manifest)


def _opened_again(open_store: partial[Store], place: str, digest: str, path: str) -> Store:
    """Open a store in another process, or refuse one that took its place."""
    try:
        store = open_store(place)
    except NoStoreError:
        part = _part_of(place, digest)
        if not os.path.lexists(part):
            raise
        beside = [_beside_part(part, side) for side in open_store.keywords["beside"]]
        store = open_store(part, beside=beside)
    store.path = path
    if store._digest != digest:
        raise replaced(path)
    return store


def _part_of(place: str, digest: str) -> str:
    """Return the folder of a store once it is the first part of a grown one."""
    return f"{place}/{part_folder(digest).rstrip('/')}"


def _beside_part(part: str, side: str) -> str:
    """Return the folder of a side table of such a store."""
    return os.path.join(folder_beside(Path(part), SIDE_TABLES), os.path.basename(side))  # noqa: PTH118, PTH119


class Store:
    """A sealed store: arrays by path.

    Opening reads one small file and keeps nothing open; files are opened by the first read of an array. A
    Store pickles as its arguments and the checksum of its seal. Processes may be started by fork,
    forkserver or spawn. A Store of an object store (``s3://``, …) must not be used in a forked process,
    because its connections do not survive a fork.

    Parameters
    ----------
    path : path or URL
        Folder of the store, or its URL: ``s3://``, ``gs://``, ``az://``, ``hf://``, ``https://``,
        ``file://``. A branch of a repository (``hf://``) is read at the commit that it has now.
    cache_dir : path, optional
        Local folder for copies of objects that were read. They are verified with the manifest, and all
        processes of the machine share them. None: no copies.
    cache_limit : str or int, default "20GB"
        Limit for all copies in `cache_dir`, in bytes or as text. The least recently used ones are removed
        first.
    beside : sequence of path, default ()
        Folders of added columns of this store, whose arrays are read like its own.
    files : OpenFiles, optional
        Open files that several stores share. None: files of its own.
    listed : StoreRoot, optional
        What a version of a versioned store states about it, instead of its root. The root is then read
        and compared when an array is first used. None: the root is read now.
    storage : Storage, optional
        Reads its files. None: the storage of `path`.

    Raises
    ------
    NoStoreError
        If there is no store at the path.
    StoreError
        If it is unfinished or of another format version, or an added column belongs to another store.

    Examples
    --------
    >>> store = unistore.Store("clouds.zarr")  # doctest: +SKIP
    >>> store.has("points/xyz")  # doctest: +SKIP
    True
    >>> store.array("points/xyz").read(0, 3).shape  # doctest: +SKIP
    (3, 3)
    """

    def __init__(
        self,
        path: PathLike,
        *,
        cache_dir: PathLike | None = None,
        cache_limit: str | int = CACHE_LIMIT,
        beside: Sequence[PathLike] = (),
        files: OpenFiles | None = None,
        listed: StoreRoot | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.place = place_of(path)
        folder = None if cache_dir is None else absolute(cache_dir)
        folders = tuple(place_of(side) for side in beside)
        self._options: JsonObject = {
            "cache_dir": folder,
            "cache_limit": cache_limit,
            "beside": folders,
            "files": files,
            "listed": listed,
            "storage": storage,
        }
        self.storage: Storage = open_storage(self.path, files) if storage is None else storage
        self._arrays: dict[str, StoredArray] = {}
        self.cached_indices: dict[str, AnyArray] = {}
        self._is_listed = listed is not None
        self._is_compared = False
        self._root = self._read_root() if listed is None else listed
        self._digest = self._root.seal.digest
        # In other processes, a branch on the Hub is the commit that this one has read
        self.place = getattr(self.storage, "place", self.place)
        if isinstance(self.storage, LocalStorage):
            self.storage.moves_to(_part_of(self.place, self._digest))
        self.storage = with_copies(self.storage, self._digest, cache_dir=cache_dir, cache_limit=cache_limit)
        self.family = self._root.family
        self.sample_table = self._root.sample_table
        self.sample_count = self._root.sample_count
        self._side_storages: dict[str, Storage] = {}
        self.side_seals: list[str] = []  # digests of the seals of its side tables
        for side in folders:
            self._add_side_table(Store(side))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (partial(type(self), **self._options), self.place, self._digest, self.path)

    def __repr__(self) -> str:
        return f"Store({self.path!r}, family={self.family!r}, samples={self.sample_count})"

    def _repr_html_(self) -> str:
        from unistore.html import notebook_html

        facts = [
            ("family", self.family.replace("_", " ")),
            ("samples", f"{self.sample_count:,} ({self.sample_table})"),
            ("arrays", f"{len(self.paths()):,}"),
            ("more", "print(unistore.inspect(store.path))"),
        ]
        return notebook_html(repr(self), facts, [(self, None)])

    @property
    def root(self) -> StoreRoot:
        """What the root states, with fields and tables of added columns."""
        return self._root

    @property
    def attributes(self) -> JsonObject:
        """The ``unistore`` object of the root, with fields and tables of added columns."""
        return self.root.to_json()

    @property
    def example(self) -> Store:
        """A store with the same arrays: itself, or the first one of several that are read as one."""
        return self

    @property
    def fork_safe(self) -> bool:
        """Whether it can be read in a forked process. False in an object store."""
        return self.storage.fork_safe

    @cached_property
    def specs(self) -> RecordedSpecs:
        """Rules for its arrays, as its root and those of its added columns state them."""
        return RecordedSpecs(StatedRules(self.root.fields, self.path))

    def array(self, path: str) -> StoredArray:
        """Return an array.

        Parameters
        ----------
        path : str
            Path of the array: ``"points/xyz"``.

        Returns
        -------
        StoredArray
            The array, which is opened once. It has ``shape``, ``dtype`` and ``attributes``. Of axis 0,
            ``read(start, stop)`` returns a range and ``read_rows(rows)`` the rows with these numbers.
            ``read_box(start, stop)`` reads a box: ``read_box((0, 8), (4, 16))`` is ``[0:4, 8:16]``.

        Raises
        ------
        StoreError
            If there is no such array; the message lists the existing ones. If its axes, dtype or number
            of rows violate the rules of the store.
        """
        array = self._arrays.get(path)
        if array is None:
            self._read_listed_root()
            if not self.has(path):
                paths = ", ".join(self.paths())
                msg = f"{self.path}: there is no array '{path}'. Fix: use one of {paths}"
                raise StoreError(msg)
            array = StoredArray.open(self._side_storages.get(path, self.storage), path)
            indices.check_array(self, array)
            self._arrays[path] = array
        return array

    @property
    def opened(self) -> list[str]:
        """Paths of the arrays that were opened."""
        return list(self._arrays)

    def read_root(self) -> StoreRoot:
        """Read what the root document states. Of a part of a version, `root` lacks options until then."""
        self._read_listed_root()
        return self.root

    def has(self, path: str) -> bool:
        """Return whether the store has an array at `path`."""
        return path in self.root.fields

    def paths(self) -> list[str]:
        """Return the paths of all arrays, sorted."""
        return sorted(self.root.fields)

    def arrays(self) -> dict[str, StoredArray]:
        """Return all arrays by path."""
        return {path: self.array(path) for path in self.paths()}

    def read(self, key: str) -> bytes:
        """Return the content of a file of the store, such as ``"unistore-manifest.jsonl"``.

        Raises
        ------
        StoreError
            If there is no such file, or it is larger than a manifest may be.
        """
        self._read_listed_root()
        return self.storage.get(key, MANIFEST_LIMIT)

    def with_side_tables(self, folders: Sequence[str]) -> Store:
        """Return the store with added columns. Without any, it returns itself."""
        if not folders:
            return self
        options = {**self._options, "beside": folders}
        return _opened_again(partial(type(self), **options), self.place, self._digest, self.path)

    def index_values(self, path: str) -> indices.ValuesByRow:
        """Return the values of a small index array, which you can index by rows."""
        return indices.whole(self, path)

    def group(self, path: str) -> JsonObject:
        """Return the attributes of the group at `path`: ``"windows/lung"``."""
        self._read_listed_root()
        return self._group_attributes(f"{path}/{ROOT}", self._side_storages.get(path))

    def text(self, path: str) -> list[str]:
        """Return the texts of a column, stored as UTF-8 bytes ``path/data`` and ``path/offsets``."""
        return indices.texts(self, path)

    def splits(self) -> tuple[UInt8s, list[str]]:
        """Return the split of every sample.

        Returns
        -------
        codes : uint8 array of shape (samples,)
            Code of the split of each sample.
        names : list of str
            Name of each code. Empty: the store has no splits.
        """
        names = self.split_names()
        codes = indices.whole(self, "splits/code")
        indices.check_codes(self, codes, names)
        return codes, names

    def split_names(self) -> list[str]:
        """Return the names of the splits, by code. Empty: the store has no splits.

        Raises
        ------
        StoreError
            If the store has no group ``splits``, or it is damaged.
        """
        key = f"splits/{ROOT}"
        try:
            return parse_split_names(self._group_attributes(key).get("names", []), "'names'")
        except GrammarError as error:
            raise self._damaged(key, str(error)) from error

    def _read_listed_root(self) -> None:
        if not self._is_listed:
            return
        root = self._read_root()
        if root.seal != self._root.seal:
            raise self._not_as_listed()
        fields = {**self._root.fields, **root.fields}  # those of side tables, too
        tables = _joined_tables(root.tables, self._root.tables)
        self._root = replace(root, fields=fields, tables=tables)
        self._is_listed = False

    def check_listed(self) -> None:
        """Compare the root with what a version lists, by its checksum."""
        if not self._is_listed or self._is_compared:
            return
        try:
            root = self.storage.get(ROOT)
        except AbsentError as error:
            raise self._missing_root() from error
        if root_digest(root) != self._root.seal.root:
            raise self._not_as_listed()
        self._is_compared = True

    def _not_as_listed(self) -> CorruptionError:
        msg = f"{self.path}: this is not the store that the version lists. Fix: restore it from a copy"
        return CorruptionError(msg)

    def _read_root(self) -> StoreRoot:
        try:
            attributes = self._group_attributes(ROOT)
        except AbsentError as error:
            raise self._missing_root() from error
        if "unistore" not in attributes:
            msg = f"{self.path}: this is a Zarr group, not a unistore store. Fix: use unistore.open_zarr"
            raise NoStoreError(msg)
        unistore = attributes["unistore"]
        if not isinstance(unistore, dict):
            raise self._damaged(ROOT, f"attribute 'unistore' is {shown(unistore)}, expected an object")
        version = unistore.get("format_version")
        if version != FORMAT_VERSION:
            found = f"has the format version {shown(version)}, but this unistore reads {FORMAT_VERSION}"
            msg = f"{self.path}: {found}. Fix: install a matching version of unistore"
            raise StoreError(msg)
        if not {*OF_SCHEMA} <= unistore.keys():
            msg = f"{self.path}: was made before unistore 0.1.0. Fix: convert its sources again"
            raise StoreError(msg)
        if "seal" not in unistore:
            msg = f"{self.path}: this conversion is not finished (no seal). Fix: run the same convert command"
            raise StoreError(msg)
        try:
            return parse_root(unistore)
        except GrammarError as error:
            raise self._damaged(ROOT, str(error)) from error

    def _add_side_table(self, side: Store) -> None:
        try:
            about = parse_side(side.root.document.get("side"))
        except GrammarError as error:
            raise side._damaged_side_table(str(error)) from error
        if about.store != self._digest:
            msg = f"{side.path}: this added column belongs to another store than {self.path}"
            raise StoreError(msg)
        fields = self._root.fields
        if isinstance(side.storage, LocalStorage):
            side.storage.moves_to(_beside_part(_part_of(self.place, self._digest), side.place))
        inside = tuple(f"{group}/" for group in about.groups)
        taken = [path for path in fields if side.has(path) or path.startswith(inside)]
        if taken:
            msg = (
                f"{side.path}: contains {taken[0]}, which {self.path} has already. Fix: remove one of the two"
            )
            raise StoreError(msg)
        try:
            fields = with_side_table(fields, side.root.fields, about.extends, self.path)
        except ValueError as error:
            why = f"'side' {MORE} {error}"
            raise side._damaged_side_table(why) from error
        tables = _joined_tables(self._root.tables, side.root.tables)
        self._root = replace(self._root, fields=fields, tables=tables)
        self.side_seals.append(side.root.seal.digest)
        for path in (*side.paths(), *about.groups):
            self._side_storages[path] = side.storage

    def _group_attributes(self, key: str, storage: Storage | None = None) -> JsonObject:
        try:
            raw = (storage or self.storage).get(key)
            document = parse_document(raw)
        except DocumentError as error:
            raise self._damaged(key, str(error)) from error
        attributes = document.get("attributes", {})
        if not isinstance(attributes, dict):
            raise self._damaged(key, "it is not the metadata of a Zarr group")
        if key == ROOT:
            self._keep_documents(repeated_documents(document), raw)
        return attributes

    def _keep_documents(self, documents: Mapping[str, JsonObject], root: bytes) -> None:
        # The root repeats all documents: those of a store in a bucket are not asked for again
        known: dict[str, bytes] | None = getattr(self.storage, "documents", None)
        if known is not None:
            known[ROOT] = root
            for path, document in documents.items():
                known[f"{path}/{ROOT}"] = json.dumps(document).encode()

    def _damaged(self, key: str, why: str) -> CorruptionError:
        return CorruptionError(f"{self.path}: {key} is damaged: {why}. Fix: unistore verify {self.path}")

    def _damaged_side_table(self, why: str) -> CorruptionError:
        # ``weight.1a2b3c4d.zarr`` is the folder that ``weight.json`` names
        document = f"{self.path.removesuffix('.zarr').rpartition('.')[0]}.json"
        fix = f"remove {document}, then run unistore derive or unistore attach again"
        return CorruptionError(f"{self.path}: {ROOT} of this added column is damaged: {why}. Fix: {fix}")

    def _missing_root(self) -> StoreError:
        path = local_path(self.path)
        place = local_path(self.place)
        if path is None or place is None:
            return NoStoreError(_why_no_store(self.path))
        build = build_folder(place)
        if build.exists():
            what = f"this conversion is not finished (see {build.name})"
            msg = f"{path}: {what}. Fix: run the same convert command"
            return StoreError(msg)
        if not place.exists():
            return NoStoreError(f"{path}: there is no such store. Fix: check the path")
        if (place / FIRST_VERSION).exists():
            fix = f"unistore compact {path} DST to make a single store, or open a part in {path / PARTS}"
            return NoStoreError(
                f"{path}: this is a versioned store, but a single store is needed. Fix: {fix}"
            )
        msg = (
            f"{path}: this is not a unistore store (no {ROOT}). Fix: unistore inspect {path} shows what it is"
        )
        return NoStoreError(msg)


def _joined_tables(
    tables: Mapping[str, Sequence[str]], more: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the columns of tables, with those that others add to them."""
    return {
        table: [*dict.fromkeys((*tables.get(table, ()), *more.get(table, ())))]
        for table in dict.fromkeys((*tables, *more))
    }


def _why_no_store(url: str) -> str:
    from unistore.remote.client import ObjectClient

    client = ObjectClient(url)
    if client.location.scheme in BUCKETS:
        if client.size(BUILD_MARK) is not None:
            return f"{url}: this conversion is not finished. Fix: run the same convert command"
        if client.list(limit=1):
            return f"{url}: this is not a unistore store (no {ROOT}). Fix: check the URL"
    return f"{url}: there is no such store (no {ROOT}). Fix: check the URL"


_DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


def open_zarr(path: PathLike) -> zarr.Group:
    """Open a store with zarr-python, read-only.

    Parameters
    ----------
    path : path or URL
        Folder or URL of a store, or of any other Zarr group.

    Returns
    -------
    zarr.Group
        The group, whose arrays you read by path.

    Raises
    ------
    StoreError
        If there is no Zarr group, its metadata cannot be read, or the folder contains links, pipes or
        devices.

    Notes
    -----
    For dask, give the shards as chunks; otherwise dask makes a task of each small inner chunk.

    Examples
    --------
    >>> unistore.open_zarr("train.zarr")["rows/data"][:3]  # doctest: +SKIP
    >>> images = unistore.open_zarr("train.zarr")["rows/image"]  # doctest: +SKIP
    >>> dask.array.from_array(images, chunks=images.shards)  # doctest: +SKIP
    """
    import zarr
    from zarr.storage import ObjectStore

    from unistore.remote.client import ObjectClient

    try:
        folder = local_path(path)
        if folder is None:
            objects = ObjectStore(ObjectClient(os.fspath(path)).handle, read_only=True)
            return zarr.open_group(objects, mode="r")
        check_tree(folder, _DOCUMENTS, DOCUMENT_LIMIT)
        return zarr.open_group(absolute(folder), mode="r")
    except FileNotFoundError as error:
        msg = f"{os.fspath(path)}: there is no such store. Fix: check the path"
        raise NoStoreError(msg) from error
    except UnistoreError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        msg = f"{os.fspath(path)}: cannot be opened as a Zarr group: {why}"
        raise StoreError(msg) from error
