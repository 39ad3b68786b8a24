"""Describe a family of sources: how files make up samples, and what a store of them holds."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.options import Options
from unistore.converters.schema import Column, Schema

if TYPE_CHECKING:  # numpy takes a fifth of a second, and help needs none
    from contextlib import AbstractContextManager
    from pathlib import Path

    from unistore.converters.common.columns import Merged, SourceColumn
    from unistore.converters.common.exported import File
    from unistore.converters.files.comparison import Restore
    from unistore.converters.opened import Array, Facts, FileSummary, Format, OpenFile, SourceFile
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Emit, Finalized, Scan
    from unistore.converters.protocol import Facts as SourceFacts
    from unistore.converters.scan_types import Parts, Scanned
    from unistore.converters.views import View, ViewLimits
    from unistore.errors import Problem
    from unistore.schemas.declared_rules import ArraySpecs
    from unistore.schemas.indices import StoreView
    from unistore.schemas.rules import Rule
    from unistore.schemas.tables import Field, IndexValues, OwnForm, Table
    from unistore.system.progress import Progress
    from unistore.system.types import AnyArray, Int64s

# Yields the files of a store. Further parameters, which have defaults, are options of the export
Exporter: TypeAlias = "Callable[..., Iterator[File]]"
# Arrays that a store lacks or has in another form, by path; None: it has one too many
ArraysOfStore: TypeAlias = "Mapping[str, tuple[Field, IndexValues] | None]"

API = 1
"""Version of this interface. A package of another one is left out with a line that says so."""


class Group(NamedTuple):
    """Files that are one source.

    Attributes
    ----------
    name
        What messages and stores call it.
    files
        Its files, the one that it is named after first.
    arrays
        What the only array of each file is called; empty: the files name their arrays.
    roles
        What each file is to the source: ``("image", "mask")``; empty: all are alike.
    unit
        What the source is a part of that no split divides: the recording of a frame; empty: it is a whole.
    detail
        What else the names say, for the family itself; it can be pickled.
    """

    name: str
    files: tuple[SourceFile, ...]
    arrays: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    unit: str = ""
    detail: Any = None


@dataclass(kw_only=True, eq=False)
class Grouping:
    """How files make up sources.

    Attributes
    ----------
    sources
        Files and groups of files that are one source each. A file in one of them is not left out.
    left_out
        Files that are in no source, each with the reason.
    problems
        What is wrong with names, or with what lies together.
    notes
        Remarks for the user.
    """

    sources: list[SourceFile | Group] = field(default_factory=list)
    left_out: list[tuple[SourceFile, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Chosen(NamedTuple):
    """Columns that a file has, and what is said of it.

    Attributes
    ----------
    columns
        By their names in the store.
    left_out
        Arrays that are not stored, with the reason.
    notes
        Remarks on the file; the same remark on several is printed once.
    problems
        What is wrong with the file.
    tables
        Columns of further tables, by their names.
    facts
        What the family says of the file, beside the facts of its format: `Schema.per_source` and
        `Family.restore` find them among these.
    splits
        Splits of the rows of the main table, each with the number of successive rows that it has, if each row
        is a sample. Empty: all are in the split that the name of the source says, if it does.
    """

    columns: Mapping[str, Column]
    left_out: Mapping[str, str] = {}
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    tables: Mapping[str, Mapping[str, Column]] = {}
    facts: Mapping[str, Any] = {}
    splits: Sequence[tuple[str, int]] = ()


class Cut(NamedTuple):
    """One sample of a file.

    Attributes
    ----------
    rows
        How many rows it takes from where the last one ended: 1 if each row is a sample.
    numbers
        Values of `Schema.per_sample`, every one of them and no other, by name. A number, or one that NumPy
        has: whole ones where the column allows ``"i"`` (stored as int64) or, if not, ``"u"`` (uint64), any
        for ``"f"`` (float64), 0 and 1 for ``"b"`` (bool). Of classes, a name or its number; of a column
        that ends in ``_utf8``, a text; of one that ends in ``_ragged``, a list of numbers.
    tables
        How many rows it takes of each table of `Schema.per` per sample, from where the last one ended.
    """

    rows: int
    numbers: Mapping[str, Any] = {}
    tables: Mapping[str, int] = {}


class Restored(NamedTuple):
    """A file's arrays and facts, as they are in a store."""

    arrays: Mapping[str, Array]
    facts: Facts


class Openable(Protocol):
    """A file of a source that a format opens, any number of times, in any process."""

    @property
    def format(self) -> Format:
        """Its format. While sources are scanned, the first bytes tell it.

        Raises
        ------
        InputError
            If it is of no format of the family.
        """
        ...

    def recognised(self) -> Claim:
        """Return what the formats say of the first bytes of a file that is scanned."""
        ...

    @property
    def file(self) -> SourceFile:
        """The file, which makes problems that name it."""
        ...

    def followed_by(self, parts: Sequence[Path], known: Any = None) -> Openable:
        """Return the same file, continued by others as a volume is by its slices.

        `known` is what its format has read of all of them, see `SourceFile`.
        """
        ...

    def open(self) -> AbstractContextManager[OpenFile]:
        """Open it. What its format raises is a problem of the file."""
        ...


class Offer(NamedTuple):
    """Something that a conversion could have precomputed.

    Attributes
    ----------
    option
        What to add to the command: ``"--voxel-bins 5"``.
    gives
        What is precomputed: ``"voxels of 5 bins"``.
    most_bytes
        What its values take at most, before compression; offsets, a few bytes a sample, are not counted.
    """

    option: str
    gives: str
    most_bytes: int

    def __str__(self) -> str:
        from unistore.system.sizes import size

        cost = f"up to about {size(self.most_bytes)} before compression"
        return f"could be precomputed: {self.gives} by {self.option}, {cost}"


class Alike(Protocol):
    """How columns of stores are joined that belong to samples: what several stores would be, made as one."""

    def arrays(self, stores: Sequence[StoreView]) -> Sequence[ArraysOfStore]:
        """Return, for each store, the arrays that it would have otherwise."""
        ...

    def column(self, field: Field, form: Merged) -> Field:
        """Return the field of a column, of what its sources say of its forms."""
        ...

    def missing(self, store: StoreView, path: str) -> Int64s:
        """Return ranges of rows of a column of samples that lack it, (ranges, 2)."""
        ...


class Family(Options, ABC):
    """A kind of sources, and the stores made of them: a frozen dataclass whose fields are its options.

    Attributes
    ----------
    name
        As stores record it: ``"audio"``.
    summary
        One line for lists of families.
    description
        What its sources are, in a sentence of its help. Empty: the first line of its docstring.
    examples
        Command lines for its help.
    formats
        Formats of its files, by class or by name: ``"hdf5"``, ``"npy"``, ``"npz"``, ``"png"``, ``"jpeg"``,
        and ``"raw"`` for files without a header.
    any_format
        Whether files of further formats are taken if their arrays fit: of every one that is `Format.offered`.
        Families that name the format are asked first.
    schema
        What its stores hold.
    kind
        Name of the kind of samples that a Dataset delivers by default: ``"Clips"``. Empty: ``Ragged`` if the
        schema has a table of samples, ``Volumes`` if it has volumes and no tables of `Schema.per`, else
        ``Rows``.
    other_kinds
        Further kinds that suit, as Python expressions: ``("unistore.Patches(96)",)``. ``inspect`` suggests
        them.
    batch_size
        Suggested by ``inspect``.
    exports
        Formats of ``unistore export --to``, beside the one of the sources: ``("nifti",)``. See `exporter`.
    derives
        Options that ``unistore derive`` makes of a store: ``("window",)``. See `derive_from`.
    derive_options
        Further options that ``unistore derive`` takes for these.
    scan_identifies
        Whether its scan says of every file whether it is the family's, so that no other family is asked.
    thread_safe
        Whether several threads may scan and read files at once: true of no family that reads HDF5.
    reads_in_place
        Whether `read` holds no more than some blocks of rows beside those that it fills.
    reads_planes
        Whether it has `read_planes`, so that rows larger than memory can be stored.
    unlisted_groups
        Paths of groups of HDF5 files that may have millions of members: files open as if these held nothing,
        see `OpenFile.without`, and the family reads members one by one.
    companions
        Endings of files of no format that are parts of sources: ``("info.json",)``. `claim` says which of
        them are the family's, and `group` gets them.
    groups_excluded
        Whether `group` gets the files, too, that ``--exclude`` names: what is paired with them is left out
        with them.
    general
        Whether it takes what no other family takes: it is asked last, and refuses what it cannot read.
    keeps_attributes
        Whether attributes and single values of HDF5 files are stored as they are, and no facts.
    follows_links
        Whether links to folders are followed, and their files called by the names that the links give.

    An option ``columns`` with the values ``"exact"``, ``"union"`` and ``"intersection"`` says what becomes of
    columns that only some files have; without it, they are refused.
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
        """Return its name on the command line: ``"point-cloud"``."""
        return cls.name.replace("_", "-")

    @classmethod
    def specs(cls) -> ArraySpecs | None:
        """Return what the arrays of its stores must be. None, by default: what the schema says."""
        return None

    @classmethod
    def kinds(cls, paths: Collection[str]) -> Sequence[str]:  # noqa: ARG003
        """Return the kinds that suit a store with arrays at `paths`, the default one first.

        Empty, by default: `kind` and `other_kinds`.
        """
        return ()

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Return rules for the values of its stores, beside those of every store; by default none."""
        return ()

    @classmethod
    def exporter(cls, to: str) -> Exporter | None:  # noqa: ARG003  of those that have some
        """Return what makes the files of ``unistore export --to``, one of `exports`.

        `to` is empty for the format of the sources. None, by default: each source is written by its format,
        from what `restore` returns. Further parameters of the function are options of the export.
        """
        return None

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore | None:  # noqa: ARG003  as above
        """Return what gives back the arrays of each source, for ``unistore verify --against``.

        None, by default: what `restore` returns.
        """
        return None

    @classmethod
    def preview(cls) -> Preview | None:
        """Return how pages show samples. None, by default: by `view`."""
        return None

    @classmethod
    def alike(cls) -> Alike | None:
        """Return how columns of its stores are joined where they belong to samples.

        None, by default: they belong to sources.
        """
        return None

    def offers(
        self,
        arrays: Mapping[str, tuple[Sequence[int], str]],
        samples: int,
    ) -> Sequence[tuple[str, str, int]]:
        """Return what further options would precompute; by default nothing.

        Parameters
        ----------
        arrays
            Shape and dtype of each array of the store, by path. Before a conversion some are missing.
        samples
            Number of samples.

        Returns
        -------
        list of tuples
            Words to add to the command (``"--voxel-bins 5"``), what they give, and the bytes that its values
            take at most, before compression. Nothing that these options have made, or that they cannot make.
        """
        return ()

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Progress
    ) -> Finalized:
        """Make of a store what a conversion with an option of `derives` makes of its sources.

        Parameters
        ----------
        option, value
            The option, and one of its values.
        store
            The store that is read.
        emit
            Appends rows to a column of a table: ``emit(table, column, rows)``.
        folder
            A folder for scratch files, which is removed.
        progress
            Told of the bytes that are read.
        """
        raise NotImplementedError

    def claim(self, file: SourceFile) -> Claim | None:
        """Say whether a file is one of the family's by its name and what lies near, without opening it.

        By default None: it is opened, and `match` says.
        """
        return None

    def match(self, head: FileSummary) -> Claim:
        """Say whether an open file is one of the family's; by default if it has every column.

        A family is as sure of a file as its format, but of bytes without a header as sure as it says.
        """
        sources = self.schema.sources
        texts = self._texts(head)
        missing = [name for name in sources if name not in head.arrays and name not in texts]
        if missing:
            return no(f"holds no {', '.join(missing)}")
        claim = maybe if head.format == "raw" else sure
        return claim(f"holds {', '.join(sources)}")

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Choose the files and groups of files that are sources; by default every file.

        What else a file needs, `OpenFile.further` names. A family that follows links is given files of any
        ending.
        """
        return Grouping(sources=list(files))

    def choose(self, head: FileSummary) -> Chosen:
        """Say which columns a file has; by default those of the schema.

        Asked in any process, once a file. dtypes of the same column in several files are reconciled: the
        smallest that holds all values exactly.
        """
        wanted = {*self.schema.sources}.difference(self._texts(head))
        problems = [problem for problem in head.problems if problem.dataset in wanted]
        return Chosen(self.schema.columns, problems=problems, tables=self.schema.direct)

    def _texts(self, head: FileSummary) -> Collection[str]:
        """Return arrays of texts, or of any number of values a row, that the schema takes as such."""
        named = self.schema.texts
        return named & head.opened.objects.keys() if named else ()

    def plan(self, columns: Mapping[str, Column]) -> Schema:
        """Return the schema of a store with these columns, which all files together have."""
        return replace(self.schema, columns=columns)

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Read the headers of a source's files, in any process, once a source.

        A family that has no `scan` of its own is converted by its schema: `match`, `choose`, `cut`, `rows`
        and `derive` are asked. One that has it, because its tables are more than columns of arrays, has
        `reconcile`, `finish` and `read`, too, and whichever of the methods up to `own` it needs.

        Parameters
        ----------
        group
            The files, with their roles, as `group` made it.
        files
            The same files, to be opened.

        Returns
        -------
        Scanned
            What `reconcile` gets. Problems of some files are collected in it.

        Raises
        ------
        InputError
            If none of the files can be read.
        """
        raise NotImplementedError

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Return all sources together: their tables, fields and remarks.

        Parameters
        ----------
        parts
            All sources in order, with the names of their files.
        scanned
            What `scan` returned for each of them. If some have problems, only others matter: they are told,
            and the result may be empty.
        """
        raise NotImplementedError

    def forms(self, scanned: Any) -> Mapping[str, SourceColumn] | None:
        """Return the forms of the columns of a scanned source, for ``--one-store-per-shape``.

        None: the source is of another family. By default, of a family with a `scan` of its own, refused.
        """
        from unistore.errors import InputError, Problem

        message = f"is not for {self.name.replace('_', ' ')}"
        raise InputError(Problem("--one-store-per-shape", message, "convert them apart", "option"))

    def stored_arrays(self, scanned: Any) -> Collection[str] | None:
        """Return the arrays of a scanned source that are stored, as its files call them. None: all."""
        return None

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceFacts:
        """Read a source once before any table is written: count, check, and emit the rows of spilled tables.

        Called if `Scan.is_derived`.

        Parameters
        ----------
        scan, source, files
            See `read`.
        emit
            Appends rows to a column of a spilled table: ``emit(table, column, rows)``.
        folder
            An empty folder for scratch files. None: everything is kept in memory.

        Returns
        -------
        SourceFacts
            Arrays that `finish` gets.
        """
        return {}

    def finish(self, scan: Scan, facts: Sequence[SourceFacts]) -> Finalized:
        """Return index arrays, attributes of groups, and the number of samples.

        `facts` has what was counted of each source while it was read, in order.
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
        scan
            What `reconcile` returned.
        source
            Number of the source in `scan.sources`.
        files
            Its files, to be opened, in the order of its group.
        table, lo, hi
            Table, and rows of it, counted in the source.
        out
            Arrays by column, (hi - lo, …) each, of fill values: smaller rows leave the rest as it is.
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
        """Read planes ``lo:hi``, of axis 1, of the only row that a source has in a table.

        As `read`, into arrays of (1, hi - lo, …).
        """
        raise NotImplementedError

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy rows of one dtype that `prepare` emitted into `out`, of the dtype that `finish` chose.

        By default a cast of NumPy's rule ``"same_kind"``.
        """
        import numpy as np

        np.copyto(out, rows, casting="same_kind")

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the form in which a source has its rows of a table, by column, for its digest.

        Columns that the source lacks have none. Each form is known from the source alone, so that no other
        source changes the digest. By default the forms that the fields name.
        """
        forms = {column: field.own_form(source) for column, field in fields.items()}
        return {column: form for column, form in forms.items() if form is not None}

    def cut(self, opened: OpenFile) -> Iterator[Cut]:
        """Divide the rows of a file, and of the tables of `Schema.per`, into samples, in order."""
        raise NotImplementedError

    def typical_rows(self, head: FileSummary) -> int:
        """Return how many rows a sample of a file has, about: chunks are laid out for that of the first."""
        return 1

    def memory(self, head: FileSummary) -> int:
        """Return the bytes of memory that `cut` and `rows` take for a file, beside the rows that they read.

        A conversion whose ``--memory`` is less is refused before it reads values. By default 0: some blocks
        of 16 MiB are counted anyway.
        """
        return 0

    def rows(self, opened: OpenFile, lo: int, hi: int) -> Mapping[str, AnyArray]:
        """Read rows ``lo:hi`` of a file, one array a column. By default slices of the file's arrays."""
        plain = [name for name, column in self.schema.columns.items() if not column.ragged]
        return {column: opened.arrays[self.schema.source_of(column)][lo:hi] for column in plain}

    def derive(self, opened: OpenFile) -> Iterator[tuple[str, Mapping[str, AnyArray | Sequence[Any]]]]:
        """Compute the tables of `Schema.derived` for a file, which is read once for it.

        Yields the name of a table and some rows of all its columns, in their order, as often as it takes:
        arrays, and lists of texts or of arrays for ragged columns.
        """
        raise NotImplementedError

    def restore(self, columns: Mapping[str, Array], facts: Facts) -> Restored:
        """Return a file's arrays from its columns in a store: the inverse of `rows`.

        Columns of further tables are called ``table/name``; those that were derived are not among them. By
        default arrays have the names that `choose` gave, and columns that were fields are records again.
        """
        from unistore.converters.opened import Array, Records

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
        return Restored({**arrays, **joined}, facts)

    def view(self, sample: Mapping[str, AnyArray], detail: ViewLimits) -> View:
        """Return what a page shows of a sample. By default images, lines and numbers of its columns."""
        from unistore.converters.views import rows_view

        return rows_view(sample, detail)
