"""Write an added column: its values, documents and seal, and put it in place."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from unistore.conversion.codec_choice import index_codec
from unistore.conversion.lock import Lock, check_plain
from unistore.conversion.plan import Plan, index_plan, unique_dimension_names, versions
from unistore.conversion.sealing import (
    IndexArrays,
    described_fields,
    metadata_documents,
    tables_of,
    write_index_and_documents,
    write_root,
)
from unistore.converters.families import specs_of
from unistore.converters.registry import family_of, package_of
from unistore.errors import AddOptions, writing_failed
from unistore.schemas.declared_rules import ArraySpecs, resolved
from unistore.schemas.recorded_rules import MORE, extensions
from unistore.store.names import FORMAT_VERSION, SIDE_FAMILY
from unistore.store.reader import Store
from unistore.store.side_tables import (
    DamagedError,
    document_of,
    is_folder_of,
    read_document,
    side_folder,
    side_names,
)
from unistore.system.arguments import wrong_argument
from unistore.system.types import AnyArray, Attributes, Dtype, Shape
from unistore.zarr3.durable import Folder, sync_folder
from unistore.zarr3.storage import AbsentError


class Spool:
    """Rows of a column in a file without a name, until all of them are known.

    Parameters
    ----------
    folder : Path
        Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  its map outlives it
        self._row_shape: Shape = ()
        self._dtype: Dtype | None = None
        self.rows = 0

    def append(self, rows: AnyArray) -> None:
        """Append rows. ValueError if they differ in dtype or row shape from earlier rows."""
        if self._dtype is None:
            self._dtype = rows.dtype
            self._row_shape = rows.shape[1:]
        if rows.dtype != self._dtype or rows.shape[1:] != self._row_shape:
            form = f"{self._dtype} {self._row_shape}"
            msg = f"have rows of {rows.dtype} {rows.shape[1:]}, but the samples before have {form}"
            raise ValueError(msg)
        try:
            self._file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise writing_failed(error, self._folder) from error
        self.rows += len(rows)

    def close(self) -> None:
        """Close the file. Its space is free when the values are no longer used."""
        self._file.close()

    def values(self) -> AnyArray:
        """Return all rows, (rows, …). They are read from the file when they are used."""
        shape = (self.rows, *self._row_shape)
        try:
            self._file.flush()
        except OSError as error:
            raise writing_failed(error, self._folder) from error
        if self._dtype is None or 0 in shape:
            return np.empty(shape, self._dtype)
        return np.memmap(self._file, self._dtype, "r", shape=shape)


@contextmanager
def new_side_table(store: Store, name: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to write an added column in. If the block ends without an error, put it in place."""
    root = side_folder(store)
    if root is None:
        message = "is in a bucket, where unistore cannot add columns"
        raise wrong_argument(store.path, message, "run the command on a local copy")
    check_plain(root)
    try:
        root.mkdir(exist_ok=True)
        with Lock(root / f".{name}.lock"):
            # A document that cannot be read is there: nothing is removed before this refusal
            if name in side_names(store) and not overwrite:
                message = f"{store.path} has an added column of this name"
                replacing = AddOptions(("--overwrite",), "to replace it")
                raise wrong_argument(name, message, ("give another name", replacing))
            _remove_leftovers(root, name)
            before = _named_folder(root, name)
            work = root / f".{name}.{os.urandom(4).hex()}.part"  # `mkdtemp` keeps other users out
            work.mkdir()
            try:
                yield work
                _put_in_place(root, name, work)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            if before is not None:
                shutil.rmtree(root / before, ignore_errors=True)
    except OSError as error:
        raise writing_failed(error, root) from error
    finally:
        with suppress(OSError):  # others are in it
            root.rmdir()


def _put_in_place(root: Path, name: str, work: Path) -> None:
    digest = Store(work).root.seal.digest
    folder = f"{name}.{work.name.split('.')[-2]}.zarr"
    work.rename(root / folder)
    sync_folder(root)
    document = json.dumps({"folder": folder, "digest": digest}).encode()
    Folder(root).put(document_of(name), [document])


def _named_folder(root: Path, name: str) -> str | None:
    """Return the folder that the document of a side table names, None without a document that says so."""
    # A damaged document is replaced with --overwrite, and the folder that it named stays
    try:
        return read_document(root, name).folder
    except (AbsentError, DamagedError):
        return None


def _remove_leftovers(root: Path, name: str) -> None:
    # Of killed processes: what never got its place, and folders that a document no longer names, which
    # only a document that was read can tell
    named = _named_folder(root, name)
    folder = rf"\.{re.escape(name)}\.[a-z0-9_]{{8}}\.part"
    document = rf"\.{re.escape(document_of(name))}\.[0-9]+-[0-9a-f]{{8}}\.part"
    for path in list(root.iterdir()):
        is_old = named is not None and is_folder_of(name, path.name) and path.name != named
        if is_old or re.fullmatch(folder, path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif re.fullmatch(document, path.name):
            path.unlink()


def write_side_table(
    folder: Path,
    store: Store,
    arrays: IndexArrays,
    *,
    table: str,
    groups: Mapping[str, Attributes],
) -> None:
    """Write and seal arrays in an empty folder.

    Parameters
    ----------
    folder : Path
        The folder.
    store : Store
        The store that they belong to.
    arrays : sequence of (Field, array)
        The arrays, with their paths in the store.
    table : str
        Table whose rows the only array has. Empty: the arrays are computed from the store.
    groups : mapping of str to mapping
        Attributes of groups, by path.
    """
    plan = _plan(store, arrays)
    described = {path: field.axes for path, field in store.root.fields.items()}
    family = family_of(store.root)
    specs: ArraySpecs = specs_of(family)
    rules = resolved(specs, {**described, **plan.axes()})
    plan = replace(plan, rules=rules.rules())
    documents = metadata_documents(plan, {}, groups)
    target = Folder(folder)
    attributes = {
        "format_version": FORMAT_VERSION,
        "family": SIDE_FAMILY,
        "samples": {"count": store.sample_count, "table": store.sample_table},
        "tables": tables_of(rules, [table] if table else groups, plan.axes()),
        "kinds": [],
        "package": package_of(family)._asdict(),
        "fields": described_fields(plan, rules),
        "created_with": dict(plan.versions),
        "side": {
            "store": store.root.seal.digest,
            "table": table,
            "groups": sorted(groups),
            MORE: extensions(store.specs, rules),
        },
    }
    planned = [(array.field, values) for array, (_, values) in zip(plan.index, arrays, strict=True)]
    entries = write_index_and_documents(target, plan, planned, documents)
    write_root(target, entries, documents, attributes)


def _plan(store: Store, arrays: IndexArrays) -> Plan:
    plans = [index_plan(field, len(values)) for field, values in arrays]
    _, named = unique_dimension_names((), plans)
    chosen = []
    for array, (_, values) in zip(named, arrays, strict=True):
        chosen.append(replace(array, codec=index_codec(array, values)))
    return Plan(
        family=store.family,
        sample_table=store.sample_table,
        sources=(),
        tables=(),
        index=tuple(chosen),
        options={},
        versions=versions(),
    )
