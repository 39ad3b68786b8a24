"""`attach`: add a column to a sealed store, from an array, an iterable or a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import zip_longest
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import missing_value, storable
from unistore.data.dataset import Dataset
from unistore.data.default_kind import default_kind
from unistore.errors import InputError
from unistore.progress import resolve_progress
from unistore.schemas.indices import sample_ranges, table_columns
from unistore.schemas.tables import Field, own_axes
from unistore.side.writing import Spool, new_side_table, write_side_table
from unistore.store.reader import Store
from unistore.store.side_tables import NAME, SideTable, read_side_table
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.progress import Progress, ProgressLike
from unistore.system.types import AnyArray, Int64s, PathLike

_NOTHING: Any = object()


def attach(
    store: PathLike,
    name: str,
    values: Any,
    table: str | None = None,
    *,
    overwrite: bool = False,
    progress: ProgressLike = None,
) -> SideTable:
    """Add a column to a sealed store: predictions, embeddings, weights, corrected labels.

    ``Dataset(store, fields=[…, name])`` reads it like a column of the table. The files of the store do
    not change: the column is stored in a folder next to it, with a seal of its own, and belongs to the
    store in its current state.

    Parameters
    ----------
    store : path
        Folder of the store.
    name : str
        Name of the column. No array of the store may have it.
    values : array, iterable, callable or path
        Bool, integers or floats; NaN is allowed. An array (rows, …): one value for each row of the table.
        An iterable with an array for each sample, in order: (N, …) for the N rows of a sample, or (…) if
        a sample is one row. A function that is called with each sample, in order, as `Dataset` returns
        it, and returns such an array. The path of a ``.npy`` file: its array. Results of iterables and
        functions are written as they come, so that memory holds one sample. Rows outside of all samples
        are then NaN, or 0 for integers.
    table : str, optional
        Table whose rows the column has: ``"points"``, ``"segments"``. None: the main table.
    overwrite : bool, default False
        Replace an added column with this name. A process that has it open continues with the old one, or
        gets an error.
    progress : optional
        For iterables and functions, as in `unistore.convert`.

    Returns
    -------
    SideTable
        The added column.

    Raises
    ------
    InputError
        If the name exists or is invalid, there is no such table, values are not numbers, or their shapes
        do not fit. The message names the sample.
    StoreError
        If there is no finished store at `store`.
    ConversionError
        If writing failed, or another process is adding this column.

    Examples
    --------
    Add predictions of a model, and read them:

    >>> def predict(sample):  # doctest: +SKIP
    ...     return model(sample["xyz"])
    >>> column = unistore.attach("clouds.zarr", "predicted", predict)  # doctest: +SKIP
    >>> dataset = unistore.Dataset("clouds.zarr", fields=["xyz", "predicted"])  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store)
    check.text("name", name)
    check.text("table", table, none=True)
    check.flag("overwrite", overwrite)
    check.raise_problems()
    opened = Store(store)
    column = _NewColumn.of(opened, name, table)
    with (
        resolve_progress(progress) as callbacks,
        new_side_table(opened, name, overwrite=overwrite) as folder,
    ):
        rows = column.rows_from(values, folder, callbacks)
        write_side_table(folder, opened, [(column.field(rows), rows)], table=column.table, groups={})
        _check_is_read(opened, column, folder)
    return read_side_table(opened, name)


class _NewColumn(NamedTuple):
    store: Store
    name: str
    table: str
    path: str  # of another column of the table

    @classmethod
    def of(cls, store: Store, name: str, table: str | None) -> _NewColumn:
        chosen = table or store.root.main_table
        columns = table_columns(store, chosen)
        if not columns:
            tables = sorted({path.partition("/")[0] for path in store.paths()} - {"sources", "splits"})
            raise wrong_argument(
                "table", f"{store.path} has no table {chosen!r}", f"use one of {', '.join(tables)}"
            )
        if not NAME.fullmatch(name):
            message = f"{name!r} is not a plain name"
            fix = "use at most 100 letters, digits, '_', '-' and '.', for example prediction"
            raise wrong_argument("name", message, fix)
        taken = [path for path in store.paths() if name in path.split("/")]
        if taken or _has_key(store, name):
            owner = f"the array {taken[0]}" if taken else "a key of the samples"
            message = f"{owner} of {store.path} has this name already"
            raise wrong_argument(name, message, "give the column another name")
        return cls(store, name, chosen, columns[0])

    @property
    def rows(self) -> int:
        return len(self.store.array(self.path))

    def field(self, values: AnyArray) -> Field:
        lo, hi = self.spans()
        axis = self.store.root.fields[self.path].axes[0]
        return Field(
            path=f"{self.table}/{self.name}",
            dtype=values.dtype.name,
            row_shape=values.shape[1:],
            axes=(axis, *own_axes(self.name, "component", values.ndim - 1)),
            description=f"{self.name}, attached to the store",
            run=max(1, int(np.median(hi - lo))) if len(lo) else 1,
        )

    def spans(self) -> tuple[Int64s, Int64s]:
        """Return first and last rows of each sample, (samples,), nothing if rows belong to no samples."""
        nothing = np.empty(0, np.int64)
        return sample_ranges(self.store, self.table) or (nothing, nothing)

    def rows_from(self, values: Any, folder: Path, progress: Progress) -> AnyArray:
        """Return the values of all rows, (rows, …)."""
        if isinstance(values, str | os.PathLike):
            values = _read_npy(values)
        if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
            whole = self._checked(values, "values")
            if whole.shape[:1] != (self.rows,):
                message = f"have the shape {whole.shape}, but the table '{self.table}' has {self.rows:,} rows"
                fix = "give a value for every row of the table, or an iterable with an array for each sample"
                raise wrong_argument("values", message, fix)
            return whole
        lo, hi = self.spans()
        if not len(lo):
            message = f"cannot be given by sample, because a row of '{self.table}' is not of a single sample"
            raise wrong_argument("values", message, f"give an array of {self.rows:,} rows")
        if callable(values):
            values = self._called(values)
        if not isinstance(values, Iterable) or isinstance(values, bytes):
            message = f"must be an array, an iterable of arrays, or a function, got {type(values).__name__}"
            raise wrong_argument("values", message)
        with closing(Spool(folder)) as spool:
            self._append(values, lo, hi, spool, progress)
            return spool.values()

    def _called(self, function: Callable[[Any], Any]) -> Iterator[Any]:
        kind = default_kind(self.store)
        chosen = (kind.whole or kind).chosen(self.store)
        dataset = Dataset(self.store.path, chosen)
        if len(dataset) != self.store.sample_count:
            message = f"cannot be a function, because {chosen} are not the rows of {self.store.sample_table}"
            raise wrong_argument("values", message, "give an array, or an iterable of arrays")
        return (function(dataset[index]) for index in range(len(dataset)))

    def _append(
        self, values: Iterable[Any], lo: Int64s, hi: Int64s, spool: Spool, progress: Progress
    ) -> None:
        is_row = self.table == self.store.sample_table
        last = 0
        bounds = zip(lo.tolist(), hi.tolist(), strict=True)
        for sample, (span, value) in enumerate(zip_longest(bounds, values, fillvalue=_NOTHING)):
            if span is _NOTHING or value is _NOTHING:
                count = "more" if span is _NOTHING else "fewer"
                message = f"have {count} than {len(lo):,} arrays, one for each sample"
                raise wrong_argument("values", message, "give one array for each sample, in order")
            first, stop = span
            what = f"values of sample {sample}"
            rows = self._checked(value, what)
            rows = rows[None] if is_row else rows
            if rows.shape[:1] != (stop - first,):
                message = (
                    f"have the shape {rows.shape}, but the sample has {stop - first:,} rows of '{self.table}'"
                )
                raise wrong_argument(what, message)
            try:
                _fill(spool, rows, first - last)
                spool.append(rows)
            except ValueError as error:
                fix = "give the same dtype and row shape for all samples"
                raise wrong_argument(what, str(error), fix) from error
            row_bytes = rows.dtype.itemsize * prod(rows.shape[1:])
            if not sample:
                progress.begin("attaching", self.rows * row_bytes)
            progress.advance((stop - last) * row_bytes)
            last = stop
        _fill(spool, rows, self.rows - last)

    def _checked(self, given: Any, what: str) -> AnyArray:
        """Return what was given as an array of a dtype that is stored."""
        # `asanyarray` keeps the mask of a library's array. Of a list, numpy would drop masks of its items
        arrays = given if isinstance(given, list | tuple) else np.asanyarray(given)
        if masked := _count_masked(arrays):
            message = f"{masked:,} of them are masked"
            fix = "fill them first, for example with values.filled(numpy.nan)"
            raise wrong_argument(what, message, fix)
        values = np.asarray(arrays)
        if not storable(values.dtype):
            fix = "give bool, integers or floats of up to 8 bytes"
            raise wrong_argument(what, f"are {values.dtype}, which cannot be stored", fix)
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _fill(spool: Spool, like: AnyArray, count: int) -> None:
    # Rows of no sample, a bounded number at a time
    for done in range(0, count, 1 << 16):
        block = (min(count - done, 1 << 16), *like.shape[1:])
        spool.append(np.full(block, missing_value(like.dtype.name), like.dtype))


def _has_key(store: Store, name: str) -> bool:
    kind = default_kind(store)
    chosen = (kind.whole or kind).chosen(store) or kind
    try:
        return bool(chosen.select(store, [name]))
    except InputError:
        return False


def _check_is_read(store: Store, column: _NewColumn, folder: Path) -> None:
    beside = Store(store.path, beside=[folder])
    beside.array(f"{column.table}/{column.name}")
    noun = column.table.removesuffix("s")
    if not _has_key(beside, column.name) and not _has_key(beside, f"{noun}.{column.name}"):
        message = f"no sample kind of this {store.family} store reads columns of '{column.table}' by name"
        raise wrong_argument("table", message, f"give table={store.root.main_table!r}")


def _count_masked(values: Any) -> int:
    if isinstance(values, list | tuple):
        return sum(map(_count_masked, values))
    return int(np.ma.getmaskarray(values).sum()) if np.ma.isMaskedArray(values) else 0


_NPY = b"\x93NUMPY"
_ZIP = b"PK"


def _read_npy(path: PathLike) -> AnyArray:
    """Map the array of a ``.npy`` file, which is never unpickled."""
    name = os.fspath(path)
    try:
        is_file = S_ISREG(os.stat(name).st_mode)  # noqa: PTH116  a pipe would be waited for
        with open(name if is_file else os.devnull, "rb") as file:  # noqa: PTH123
            begin = file.read(len(_NPY))
    except FileNotFoundError as error:
        raise wrong_argument(name, "the file does not exist", "check the path") from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        fix = (
            "change its permissions" if isinstance(error, PermissionError) else "check the path and its disk"
        )
        raise wrong_argument(name, message, fix) from error
    if not is_file:
        what = "a folder" if Path(name).is_dir() else "a pipe or a device"
        raise wrong_argument(name, f"is {what}, not a .npy file", "give a file that np.save(…) wrote")
    if begin != _NPY:
        what = "an archive of arrays" if begin.startswith(_ZIP) else f"it begins with {begin!r}"
        what = what if begin else "it is empty"
        raise wrong_argument(name, f"is not a .npy file: {what}", "write the array with np.save(…)")
    try:
        mapped: AnyArray = np.load(name, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise wrong_argument(name, f"cannot be read: {error.strerror or error}") from error
    except Exception as error:  # what numpy's parser of headers raises has many names
        fix = "write it again with np.save(…)"
        message = f"is not a complete .npy file of numbers: {error}"
        raise wrong_argument(name, message, fix) from error
    return mapped
