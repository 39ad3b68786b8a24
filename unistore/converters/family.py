"""The interface of families: `Family`.

A family is a kind of data, such as point clouds. It decides which files belong together and what a sample is.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.family_types import (
    Alike,
    Chosen,
    Cut,
    Exporter,
    Group,
    Grouping,
    Openable,
    Restored,
)
from unistore.converters.options import Options
from unistore.converters.schema import Column, Schema

if TYPE_CHECKING:  # numpy takes a fifth of a second, and help needs none
    from pathlib import Path

    from unistore.converters.array import Array
    from unistore.converters.common.columns import SourceColumn
    from unistore.converters.files.comparison import Restore
    from unistore.converters.opened import FileSummary, Format, Metadata, OpenFile, SourceFile
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Emit, Finalized, Scan, SourceArrays
    from unistore.converters.scan_types import Parts, Scanned
    from unistore.converters.views import View, ViewLimits
    from unistore.schemas.declared_rules import ArraySpecs
    from unistore.schemas.indices import StoreView
    from unistore.schemas.rules import Rule
    from unistore.schemas.tables import Field, OwnForm, Table
    from unistore.system.progress import Progress
    from unistore.system.types import AnyArray

API = 1
"""Version of this interface. A package of another one is left out with a line that says so."""


class Family(Options, ABC):
    """Base class of families: a frozen dataclass whose fields are the options of a conversion.

    A family is a kind of data, such as point clouds. A subclass sets class attributes, at least `name`,
    `summary`, `formats` and `schema`, and overrides the methods whose default does not fit. Most families
    need `cut`; a simple one needs no method.

    A family with an option ``columns`` (``"exact"``, ``"union"`` or ``"intersection"``) accepts files
    that differ in their columns, as the option says. Without it, such files are an error.

    Attributes
    ----------
    name : str
        Name that stores record: ``"audio"``.
    summary : str
        One line for lists of families.
    description : str, default ""
        One sentence about its files, for its help. Empty: the first line of the docstring.
    examples : tuple of str, default ()
        Command lines for its help.
    formats : tuple of Format class or str
        Formats of its files, by class or by name: ``"hdf5"``, ``"npy"``, ``"npz"``, ``"png"``,
        ``"jpeg"``, and ``"raw"`` for files without a header.
    any_format : bool, default False
        Whether to accept files of other formats if their arrays fit, of every format with `Format.offered`.
        Families that name the format come first.
    schema : Schema
        Content of its stores.
    kind : str, default ""
        Name of the default sample kind: ``"Clips"``. Empty: ``Ragged`` if the schema has a table of samples,
        ``Volumes`` if it has volumes and no tables of `Schema.per`, otherwise ``Rows``.
    other_kinds : tuple of str, default ()
        Other suitable sample kinds, as Python expressions: ``("unistore.Patches(96)",)``. ``inspect``
        suggests them.
    batch_size : int, default 8
        Batch size that ``inspect`` suggests.
    exports : tuple of str, default ()
        Formats of ``unistore export --to``, in addition to the format of the sources: ``("nifti",)``. See
        `exporter`.
    derives : tuple of str, default ()
        Options that ``unistore derive`` can apply to a store: ``("window",)``. See `derive_from`.
    derive_options : tuple of str, default ()
        Further options of ``unistore derive`` for these.
    scan_identifies : bool, default False
        Whether `scan` decides for every file if it belongs to the family, so that no other family is asked.
    thread_safe : bool, default False
        Whether several threads may scan and read files at the same time. False for every family that
        reads HDF5.
    reads_in_place : bool, default False
        Whether `read` needs memory only for a few blocks of rows, in addition to the rows that it fills.
    reads_planes : bool, default False
        Whether `read_planes` is implemented, so that rows larger than memory can be stored.
    unlisted_groups : tuple of str, default ()
        Paths of groups of HDF5 files that may have millions of members. Files open as if these groups
        were empty (see `OpenFile.without`), and the family reads members one by one.
    companions : tuple of str, default ()
        Endings of files that no format reads but that are parts of sources: ``("info.json",)``. `claim`
        decides which of them belong to the family, and `group` gets them.
    groups_excluded : bool, default False
        Whether `group` also gets files that ``--exclude`` names, so that their partners are skipped with
        them.
    general : bool, default False
        Whether the family accepts files that no other family does. It is asked last, and files that it cannot
        read are problems.
    keeps_attributes : bool, default False
        Whether to store attributes and single values of HDF5 files exactly, instead of metadata.
    follows_links : bool, default False
        Whether to follow links to folders. Files then get the names of the links.

    Examples
    --------
    A family of recordings, of which each is a sample:

    >>> @dataclass(frozen=True, kw_only=True)  # doctest: +SKIP
    ... class Audio(Family):
    ...     name = "audio"
    ...     summary = "sound recordings"
    ...     formats = (Wav,)
    ...     schema = Schema(table="frames", columns={"samples": Column(kinds="if")}, samples="clips")
    ...
    ...     def cut(self, opened):
    ...         yield Cut(len(opened.arrays["samples"]))

    The guide "Write a family" has the whole package and its test.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str] = ""
    examples: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[type[Format] | str, ...]]
    any_format: ClassVar[bool] = False
    schema: ClassVar[Schema]
    kind: ClassVar[str] = ""
    other_kinds: ClassVar[tuple[str, ...]] = ()
    batch_size: ClassVar[int] = 8
    exports: ClassVar[tuple[str, ...]] = ()
    derives: ClassVar[tuple[str, ...]] = ()
    derive_options: ClassVar[tuple[str, ...]] = ()
    scan_identifies: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = False
    reads_in_place: ClassVar[bool] = False
    reads_planes: ClassVar[bool] = False
    unlisted_groups: ClassVar[tuple[str, ...]] = ()
    companions: ClassVar[tuple[str, ...]] = ()
    groups_excluded: ClassVar[bool] = False
    general: ClassVar[bool] = False
    keeps_attributes: ClassVar[bool] = False
    follows_links: ClassVar[bool] = False

    @classmethod
    def command(cls) -> str:
        """Return the name of the family on the command line: ``"point-cloud"``."""
        return cls.name.replace("_", "-")

    @classmethod
    def specs(cls) -> ArraySpecs | None:
        """Return the rules for the arrays of its stores. None, the default: as the schema states."""
        return None

    @classmethod
    def kinds(cls, paths: Collection[str]) -> Sequence[str]:  # noqa: ARG003
        """Return the sample kinds that suit a store, the default one first.

        Parameters
        ----------
        paths : collection of str
            Paths of the arrays of the store.

        Returns
        -------
        sequence of str
            Python expressions. Empty, the default: `kind` and `other_kinds`.
        """
        return ()

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Return rules for the values of its stores, beyond those of every store. The default has none."""
        return ()

    @classmethod
    def exporter(cls, to: str) -> Exporter | None:  # noqa: ARG003  of those that have some
        """Return the function that makes the files of ``unistore export --to``.

        Parameters
        ----------
        to : str
            One of `exports`. Empty: the format of the sources.

        Returns
        -------
        callable or None
            Yields each `File`. Its further parameters are options of the export. None, the default: the
            format of each source writes it from the result of `restore`.
        """
        return None

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore | None:  # noqa: ARG003  as above
        """Return the function that restores the arrays of a source, for ``unistore verify --against``.

        None, the default: the result of `restore` is compared.
        """
        return None

    @classmethod
    def preview(cls) -> Preview | None:
        """Return how pages show samples. None, the default: as `view` returns them."""
        return None

    @classmethod
    def alike(cls) -> Alike | None:
        """Return how columns of its stores are joined.

        None, the default: columns belong to sources, not to samples.
        """
        return None

    def offers(
        self,
        arrays: Mapping[str, tuple[Sequence[int], str]],
        samples: int,
    ) -> Sequence[tuple[str, str, int]]:
        """Return what further options could precompute. The default returns nothing.

        Parameters
        ----------
        arrays : mapping of str to (shape, dtype)
            Shape and dtype of each array of the store, by path. Before a conversion, some arrays are missing.
        samples : int
            Number of samples.

        Returns
        -------
        sequence of (str, str, int)
            Words to add to the command (``"--voxel-bins 5"``), what they precompute, and the largest size
            of the values in bytes, before compression. Leave out what the current options have done, or
            cannot do.
        """
        return ()

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Progress
    ) -> Finalized:
        """Compute from a store what a conversion with an option of `derives` computes from its sources.

        Parameters
        ----------
        option : str
            One of `derives`.
        value
            One of the values of that option.
        store : StoreView
            The store to read.
        emit : callable
            ``emit(table, column, rows)`` appends rows to a column of a table.
        folder : Path
            Folder for scratch files. It is removed afterwards.
        progress : Progress
            Gets the number of bytes that are read.

        Returns
        -------
        Finalized
            Index arrays and tables to add.
        """
        raise NotImplementedError

    def claim(self, file: SourceFile) -> Claim | None:
        """Decide by the name of a file, and the files near it, whether it belongs to the family.

        The file is not opened. None, the default: it is opened, and `match` decides.
        """
        return None

    def match(self, head: FileSummary) -> Claim:
        """Decide whether an open file belongs to the family.

        By default it does if it has every column of the schema. The family is then as sure as the format;
        for a file without a header, as sure as the returned claim.

        Parameters
        ----------
        head : FileSummary
            Names, shapes, dtypes and metadata of the file. Do not read values.

        Returns
        -------
        Claim
            Made with `sure`, `maybe` or `no`.

        Examples
        --------
        >>> def match(self, head):  # doctest: +SKIP
        ...     shape, dtype = head.arrays.get("samples", ((), None))
        ...     return sure("has samples") if len(shape) == 1 else no("has no samples of one channel")
        """
        sources = self.schema.sources
        texts = self._texts(head)
        missing = [name for name in sources if name not in head.arrays and name not in texts]
        if missing:
            return no(f"does not contain {', '.join(missing)}")
        claim = maybe if head.format == "raw" else sure
        return claim(f"contains {', '.join(sources)}")

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Decide which files form sources. By default, every file is a source.

        Other files that a source needs are listed in `OpenFile.further`. A family with `follows_links`
        gets files with any ending.

        Parameters
        ----------
        files : sequence of SourceFile
            All files of the family.

        Returns
        -------
        Grouping
            The sources, and skipped files with reasons.
        """
        return Grouping(sources=list(files))

    def choose(self, head: FileSummary) -> Chosen:
        """Decide which columns of a file to store. By default, the columns of the schema.

        This is called in any process, once per file. If files differ in the dtype of a column, the
        smallest dtype that represents all values exactly is stored.

        Parameters
        ----------
        head : FileSummary
            Names, shapes, dtypes and metadata of the file.

        Returns
        -------
        Chosen
            The columns, and skipped arrays with reasons.
        """
        wanted = {*self.schema.sources}.difference(self._texts(head))
        problems = [problem for problem in head.problems if problem.dataset in wanted]
        return Chosen(self.schema.columns, problems=problems, tables=self.schema.direct)

    def _texts(self, head: FileSummary) -> Collection[str]:
        """Return arrays of texts, or of any number of values a row, that the schema takes as such."""
        named = self.schema.texts
        return named & head.opened.objects.keys() if named else ()

    def plan(self, columns: Mapping[str, Column]) -> Schema:
        """Return the schema of a store, given the columns that its files have together."""
        return replace(self.schema, columns=columns)

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Read the headers of the files of a source. Called in any process, once per source.

        A family without `scan` is converted by its schema, with the methods `match`, `choose`, `cut`,
        `rows` and `derive`. Implement `scan` if tables of the store are more than columns of arrays; then
        also implement `reconcile`, `finish` and `read`, and override the methods from `forms` to `own` if
        needed.

        Parameters
        ----------
        group : Group
            The file set with the roles of its files, as `group` made it.
        files : sequence of Openable
            The same files, to open.

        Returns
        -------
        Scanned
            A subclass with what `reconcile` needs. Put problems of single files into it.

        Raises
        ------
        InputError
            If no file can be read.
        """
        raise NotImplementedError

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Combine all sources: tables, fields and notes of the store.

        Parameters
        ----------
        parts : Parts
            All sources in order, with the names of their files.
        scanned : sequence
            The result of `scan` for each source.

        Returns
        -------
        Scan
            The plan of the store. If sources have problems, it is not used and may be empty; only the
            other problems matter.

        Raises
        ------
        InputError
            If sources contradict each other.
        """
        raise NotImplementedError

    def forms(self, scanned: Any) -> Mapping[str, SourceColumn] | None:
        """Return dtype and shape of the columns of a scanned source, for ``--one-store-per-shape``.

        Returns
        -------
        mapping of str to SourceColumn, or None
            None: the source belongs to another family.

        Raises
        ------
        InputError
            By default, for a family with its own `scan`.
        """
        from unistore.errors import InputError, Problem

        message = f"the family '{self.command()}' does not support it"
        fix = "convert files of different shapes in separate commands"
        raise InputError(Problem("--one-store-per-shape", message, fix, "option"))

    def stored_arrays(self, scanned: Any) -> Collection[str] | None:
        """Return the names of the stored arrays of a scanned source, as its files call them. None: all."""
        return None

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        """Read a source once before any table is written, to count, check, and emit rows of spilled tables.

        This is called if `Scan.is_derived`. A spilled table is one whose number of rows depends on the
        values.

        Parameters
        ----------
        scan : Scan
            Result of `reconcile`.
        source : int
            Number of the source in `scan.sources`.
        files : sequence of Openable
            Its files, in the order of its group.
        emit : callable
            ``emit(table, column, rows)`` appends rows to a column of a spilled table.
        folder : Path or None
            Empty folder for scratch files. None: keep everything in memory.

        Returns
        -------
        mapping of str to array
            Small arrays for `finish`.
        """
        return {}

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Return index arrays, attributes of groups, and the number of samples.

        Parameters
        ----------
        scan : Scan
            Result of `reconcile`.
        prepared : sequence of mapping
            Result of `prepare` for each source, in order.

        Returns
        -------
        Finalized
            Everything that is known after all sources were read once.
        """
        raise NotImplementedError

    def read(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read rows ``lo:hi`` of a source into the arrays of a table.

        Parameters
        ----------
        scan : Scan
            Result of `reconcile`.
        source : int
            Number of the source in `scan.sources`.
        files : sequence of Openable
            Its files, in the order of its group.
        table : str
            Name of the table.
        lo, hi : int
            First row, and the row after the last, counted in the source.
        out : mapping of str to array
            Array of shape (hi - lo, …) for each column, filled with its fill value. A smaller row writes
            only a part.
        """
        raise NotImplementedError

    def read_planes(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read planes ``lo:hi`` of axis 1 of the only row that a source has in a table.

        As `read`, into arrays of shape (1, hi - lo, …).
        """
        raise NotImplementedError

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy rows that `prepare` emitted to the memory of the store, in the dtype that `finish` chose.

        By default they are cast with NumPy's rule ``"same_kind"``.

        Parameters
        ----------
        scan : Scan
            Result of `reconcile`.
        table : Table
            The spilled table.
        column : str
            Name of the column.
        source : int
            Number of the source.
        rows : array of shape (n, …)
            Emitted rows of one dtype.
        out : array of shape (n, …)
            Receives the rows.
        """
        import numpy as np

        np.copyto(out, rows, casting="same_kind")

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the form in which a source has its rows of a table, for the hash of the source.

        A form depends only on its source, so that other sources do not change the hash. By default, the
        forms follow from the fields.

        Parameters
        ----------
        scan : Scan
            Result of `reconcile`.
        table : str
            Name of the table.
        source : int
            Number of the source.
        fields : mapping of str to Field
            Fields of the table, by column.

        Returns
        -------
        mapping of str to OwnForm
            Forms by column, without columns that the source does not have.
        """
        forms = {column: field.own_form(source) for column, field in fields.items()}
        return {column: form for column, form in forms.items() if form is not None}

    def cut(self, opened: OpenFile) -> Iterator[Cut]:
        """Divide the rows of a file, and of the tables of `Schema.per`, into samples.

        Implement it if the schema has a table of samples.

        Parameters
        ----------
        opened : OpenFile
            The open file.

        Yields
        ------
        Cut
            The samples in order. Together they have all rows.

        Examples
        --------
        Samples of 400 rows:

        >>> def cut(self, opened):  # doctest: +SKIP
        ...     rows = len(opened.arrays["samples"])
        ...     if rows % 400:
        ...         raise opened.file.problem(f"has {rows} rows, not a multiple of 400")
        ...     for _ in range(rows // 400):
        ...         yield Cut(400)
        """
        raise NotImplementedError

    def typical_rows(self, head: FileSummary) -> int:
        """Return the approximate number of rows of a sample.

        The first file determines the shape of chunks.
        """
        return 1

    def memory(self, head: FileSummary) -> int:
        """Return the memory that `cut` and `rows` need for a file, in bytes, beyond the rows that they read.

        A conversion with less ``--memory`` is an error before values are read. The default is 0; a few
        blocks of 16 MiB are always counted.
        """
        return 0

    def rows(self, opened: OpenFile, lo: int, hi: int) -> Mapping[str, AnyArray]:
        """Read rows ``lo:hi`` of a file.

        Parameters
        ----------
        opened : OpenFile
            The open file.
        lo, hi : int
            First row, and the row after the last.

        Returns
        -------
        mapping of str to array
            Array of shape (hi - lo, …) for each column. By default, slices of the arrays of the file.
        """
        plain = [name for name, column in self.schema.columns.items() if not column.ragged]
        return {column: opened.arrays[self.schema.source_of(column)][lo:hi] for column in plain}

    def derive(self, opened: OpenFile) -> Iterator[tuple[str, Mapping[str, AnyArray | Sequence[Any]]]]:
        """Compute the tables of `Schema.derived` for a file. The file is read once for this.

        Parameters
        ----------
        opened : OpenFile
            The open file.

        Yields
        ------
        str
            Name of the table. It may be yielded several times.
        mapping of str to array or sequence
            The next rows of all its columns: arrays; for columns of variable length, lists of texts or
            arrays.
        """
        raise NotImplementedError

    def restore(self, columns: Mapping[str, Array], metadata: Metadata) -> Restored:
        """Restore the arrays of a file from its columns in a store: the inverse of `rows`.

        By default, arrays get the names that `choose` recorded, and columns that were fields become
        records again.

        Parameters
        ----------
        columns : mapping of str to Array
            Columns by name. Columns of further tables are named ``table/name``; derived tables are not
            included.
        metadata : mapping
            Metadata of the file.

        Returns
        -------
        Restored
            Arrays and metadata, as the file had them.
        """
        from unistore.converters.array import Array, Records

        arrays: dict[str, Array] = {}
        records: dict[str, dict[str, Array]] = {}
        for name, column in columns.items():
            source = column.source or self.schema.source_of(name)
            field = column.field if column.source else self.schema.field_of(name)
            if field:
                records.setdefault(source, {})[field] = column
            else:
                arrays[source] = column
        joined = {source: Array(Records(fields)) for source, fields in records.items()}
        return Restored({**arrays, **joined}, metadata)

    def view(self, sample: Mapping[str, AnyArray], detail: ViewLimits) -> View:
        """Return the view of a sample for a page. By default: images, lines and numbers of its columns.

        Parameters
        ----------
        sample : mapping of str to array
            Rows of the sample, by path of the column.
        detail : ViewLimits
            Limits for the size of the view.
        """
        from unistore.converters.views import rows_view

        return rows_view(sample, detail)
