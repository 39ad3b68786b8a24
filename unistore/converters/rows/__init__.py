"""Plain arrays: files whose arrays share axis 0, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from unistore.converters.rows.options import RowsOptions
from unistore.plugin import Family, Schema

if TYPE_CHECKING:
    from unistore.converters.family_types import Exporter
    from unistore.converters.files.comparison import Restore
    from unistore.converters.scan_types import Scan
    from unistore.plugin import (
        Chosen,
        Claim,
        FileSummary,
        Format,
        Grouping,
        SourceFile,
    )
    from unistore.schemas.indices import StoreView


@dataclass(frozen=True, kw_only=True)
class RowsFamily(RowsOptions, Family):
    """The family of plain arrays. `RowsOptions` has its options."""

    name = "rows"
    summary = "Plain arrays: HDF5, .npy, .npz, Parquet."
    description = "Plain arrays: HDF5, .npy, .npz or Parquet files whose arrays share axis 0."
    examples = (
        "unistore convert rows arrays/ train.zarr",
        "unistore convert rows a.h5 b.h5 train.zarr --split train=0.9,val=0.1",
        "unistore convert rows a.npz train.zarr --map image=x --map label=y",
    )
    any_format = True
    schema = Schema(table="rows")
    batch_size = 64
    general = True
    keeps_attributes = True

    @classmethod
    def exporter(cls, to: str) -> Exporter:  # noqa: ARG003  its only format
        """Yield the files of the sources."""
        from unistore.converters.rows.export import files

        return partial(files, cls())

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore the arrays of each file."""
        from unistore.converters.rows.export import restore

        return restore(store, scan)

    @property
    def formats(self) -> tuple[type[Format] | str, ...]:  # type: ignore[override]  # others have one tuple
        """HDF5 as MATLAB writes it, if the user says so.

        Its groups are splits, unless the user names datasets of such a group, or from the root: ``/extra/x``.
        """
        from unistore.converters.files.paths import is_in_split
        from unistore.converters.formats import hdf5

        of_user: tuple[type[Format], type[Format]]
        if any(path.startswith("/") or is_in_split(path) for path in self.map.values()):
            of_user = hdf5.Hdf5, hdf5.MatlabHdf5
        elif self.columns == "intersection":
            of_user = hdf5.Hdf5WithCommonColumns, hdf5.MatlabWithCommonColumns
        else:
            of_user = hdf5.Hdf5WithSplits, hdf5.MatlabWithSplits
        return (of_user[self.reverse_axes], "npy", "npz", "parquet")

    def match(self, head: FileSummary) -> Claim:
        """Take every file that holds numbers. This family is asked last."""
        from unistore.converters.rows.columns import match

        return match(head)

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Group ``.npy`` files of a folder that are columns of the same rows."""
        from unistore.converters.rows.columns import group

        return group(files)

    def choose(self, head: FileSummary) -> Chosen:
        """Take all arrays, or those that ``--map`` names."""
        from unistore.converters.rows.columns import choose

        return choose(self, head)
