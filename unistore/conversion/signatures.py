"""`unistore.convert`. Its overloads give type checkers and editors the options of each family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from unistore.conversion.convert import (
    convert_with,
    detect_family,
    implied_family,
    local_sources,
    shared_folder,
)
from unistore.conversion.report import Report
from unistore.conversion.settings import Settings
from unistore.converters.detection import Detection
from unistore.progress import resolve_progress
from unistore.system.arguments import Arguments
from unistore.system.progress import ProgressLike
from unistore.system.types import PathLike

if TYPE_CHECKING:
    from typing import Unpack

    from distributed import Client

# Written by tools/write_signatures.py: the options that families declare


class _CtOptions(TypedDict, total=False):
    window: str | Sequence[str]
    sparse: Literal["auto", "coords", "mask"]
    tile: tuple[int, int, int]
    resolution: int | None
    values: Literal["hu"] | None
    info_order: Literal["zyx", "xyz"] | None
    keep_names: bool
    foreground_locations: int | None
    label_map: str | None
    ignore_label: int | None


class _EventsOptions(TypedDict, total=False):
    sensor: tuple[int, int] | None
    unit: Literal["auto", "us", "ms", "ns", "s"]
    order: Literal["auto", "txyp", "xytp", "xypt"]
    events: str


class _PointCloudOptions(TypedDict, total=False):
    voxel_size: float | Sequence[float]
    map: Mapping[str, str]
    segment: str | None
    min_points: int
    max_points: int | None
    columns: Literal["exact", "union", "intersection"]
    nan: Literal["refuse", "drop"]
    label_map: str | None
    ignore_label: int | None


class _RowsOptions(TypedDict, total=False):
    map: Mapping[str, str]
    columns: Literal["exact", "union", "intersection"]
    reverse_axes: bool


class _SpikeOptions(TypedDict, total=False):
    height: int | None
    width: int | None
    layout: Literal["auto", "packed", "packed-msb", "bytes"]
    flip: bool
    voxel_bins: int | Sequence[int]
    frames: Literal["tiles", "keep"]
    convert_images: bool
    columns: Literal["exact", "intersection"]
    spike_dir: str
    voxel_dir: str
    blur_dir: str
    sharp_dir: str


class _TrajectoryOptions(TypedDict, total=False):
    image_size: int | None
    images: Literal["raw", "keep", "resized"]
    video: Literal["frames", "keep"]
    colour: Literal["standard", "swapped"]
    map: Mapping[str, str]
    ignore: str | Sequence[str]
    columns: Literal["exact", "union", "intersection"]
    rate: Mapping[str, str]
    time_unit: Literal["s", "ms", "us", "ns"] | None
    keep_stats: bool
    stamps: Literal["header", "log"]


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["ct"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_CtOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["events"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_EventsOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["point_cloud", "point-cloud"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_PointCloudOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["rows"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_RowsOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["spike"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_SpikeOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["trajectory"] | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Unpack[_TrajectoryOptions],
) -> Report: ...


@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: str | Detection,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> Report: ...


# End of the written part


def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: str | Detection | None = None,
    *,
    exclude: str | Sequence[str] = (),
    on_error: Literal["fail", "skip"] = "fail",
    split: str | Mapping[str, float] | None = None,
    split_by: str = "source",
    split_seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
    codec: Literal["auto", "fast", "balanced", "small", "zstd", "none"] = "auto",
    workers: int = 0,
    memory: str | int | None = None,
    scheduler: str | Client | None = None,
    wait: float | None = None,
    part: str | None = None,
    seal: bool = False,
    work: PathLike | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> Report:
    r"""Convert research data into one sealed store.

    If the call is interrupted or killed, repeat it: it continues with the tasks that are left.

    Parameters
    ----------
    sources : path, URL, or iterable of them
        Files and folders, or URLs of objects and prefixes (``s3://``, ``gs://``, ``az://``) or of files on
        the Hugging Face Hub (``hf://``) and web servers (``https://``). Objects are first copied to
        ``<destination>.unistore-sources``, which is removed when the store is sealed.
    destination : path or URL
        Folder of the store. It is written as ``<destination>.unistore-build`` and renamed when it is
        finished. Or a URL in a bucket (``s3://``, ``gs://``, ``az://``): shards are written directly, and
        the root object is written last; see `work`.
    family : str, optional
        Family of the sources, as listed by ``unistore convert --help``. Files that the family should read by
        their names, but that hold only plain arrays, are then an error. None: the only family that has all
        given options, otherwise the family that the content of the files shows; plain arrays among its files
        are skipped. The result of `detect_family` works, too.
    exclude : str or sequence of str, default ()
        Names of files, folders or episodes to skip, spelled as in messages. A name that matches nothing is
        an error.
    on_error : {"fail", "skip"}, default "fail"
        ``"fail"``: any problem is an error, and nothing is written. ``"skip"``: files, cases and episodes
        with problems are skipped, and listed in the store's ``unistore-report.json`` and in
        ``Report.skipped``.
    split : str or dict of str to float, optional
        Shares of the splits: ``"train=0.8,val=0.2"``. A hash of its name assigns each source to a split, so
        new or removed data moves no other source. ``"exact:train=0.8,val=0.2"`` meets the shares as closely
        as whole sources allow, and new data may move sources. None: the splits that the sources name.
    split_by : str, default "source"
        Unit that `split` never divides: ``"source"``, or the name of a sample, such as ``"episode"``. Splits
        that the sources give to samples (masks) take precedence.
    split_seed : int, default 0
        Seed of the hash, 0 or more. Another seed gives other splits.
    split_from : path, optional
        A store, or a list of splits: a ``.csv`` file of ``NAME,SPLIT`` lines or a ``.json`` file
        ``{NAME: SPLIT}``. Sources, or samples as ``"SOURCE: SAMPLE"``, get the splits that their names have
        there. Names that are not there are assigned by `split`; without `split` they are an error.
    group_by : str, optional
        Keeps sources together in one split: a regular expression that is searched in each name
        (``r"patient_\d+"``; its group, if it has one), or ``"column:subject"`` for a column of the samples.
    codec : {"auto", "fast", "balanced", "small", "zstd", "none"}, default "auto"
        ``"auto"`` chooses a codec for each column by trial: none if compression saves little, otherwise lz4,
        or zstd if that saves much more. Columns that samples read at random stay uncompressed if the store
        grows by at most a tenth; a store in a bucket is compressed. ``"fast"`` (blosc-lz4), ``"balanced"``,
        ``"small"`` (blosc-zstd), ``"zstd"`` (zstd without blosc) and ``"none"`` use one codec for all
        columns.
    workers : int, default 0
        Number of worker processes. 0: this process converts, with one worker for files that are read by
        foreign libraries, such as HDF5.
    memory : str or int, optional
        Limit for all processes together: ``"4GB"``, or bytes. Fewer workers are started if necessary; a limit
        too small for one task is an error. Data that does not fit into a worker's share is sorted on disk.
        The bytes of the store do not depend on the limit. None: no limit, and a share of 512 MiB.
    scheduler : str or distributed.Client, optional
        Address of a running dask scheduler, the ``.json`` file written by its ``--scheduler-file``, or a
        client, which may have a ``Security`` of its own. None: worker processes on this machine.
    wait : float, optional
        Only with `scheduler`: seconds to wait for a worker, or for an answer of the scheduler, before the
        conversion fails. What it waits for is reported at once and every 30 s. None: wait forever.
    part : str, optional
        ``"3/8"``: run as job 3 of 8 that write one store together. Jobs share the staging folder (in a
        bucket: `work`). They run in any order, at the same time or not, on any machine, and may be repeated.
        The job that ends last seals the store; the others return a report with ``unfinished_parts``. None:
        the only job.
    seal : bool, default False
        Convert nothing, and only seal the store that the jobs of `part` have written.
    work : path, optional
        Only for a destination in a bucket: folder for ``<name>.unistore-build`` with the journal and the
        spilled rows. None: the current folder.
    overwrite : bool, default False
        Replace a finished store. It stays in place until the new one is sealed.
    restart : bool, default False
        Discard an unfinished conversion instead of continuing it.
    progress : bool or Progress, optional
        True shows progress bars, False shows none. None: bars in a terminal or a notebook. Or an object with
        ``begin``, ``advance`` and ``tell``, as `unistore.system.progress.Progress`. Without a terminal, bars
        are a line every 30 s in every stage.
    **options
        Options of the family, such as ``voxel_size=0.5``; ``unistore convert FAMILY --help`` lists them.

    Returns
    -------
    Report
        Counts, sizes, and the checksum of the seal.

    Raises
    ------
    InputError
        If sources or options have problems. It contains the problems of all files.
    ConversionError
        If writing failed. The same call continues.

    See Also
    --------
    unistore.inspect : Show what a conversion would write.
    unistore.append : Add new sources to a store.

    Examples
    --------
    >>> report = unistore.convert("clouds/", "clouds.zarr", voxel_size=0.5)  # doctest: +SKIP
    >>> report.samples, report.sources  # doctest: +SKIP
    (24, 6)

    Four workers, at most 8 GB of memory, and splits that keep a patient together:

    >>> report = unistore.convert(  # doctest: +SKIP
    ...     "cases/", "ct.zarr", split="train=0.8,val=0.2", group_by=r"patient_\d+", workers=4, memory="8GB"
    ... )
    """
    check = Arguments()
    check.path("destination", destination)
    if not isinstance(family, Detection):
        check.text("family", family, none=True)
    check.raise_problems()
    settings = Settings(
        codec=codec,
        split=split,
        split_by=split_by,
        split_seed=split_seed,
        split_from=split_from,
        group_by=group_by,
        overwrite=overwrite,
        restart=restart,
        work=work,
        workers=workers,
        scheduler=scheduler,
        memory=memory,
        on_error=on_error,
        wait=wait,
        part=part,
        seal=seal,
    )
    with resolve_progress(progress) as callbacks:
        paths = local_sources(sources, destination, settings, callbacks)
        if family is None:
            jobs_folder = shared_folder(settings, destination)
            family = implied_family(options) or detect_family(paths, jobs_folder, callbacks)
        family_options = {**options, "exclude": exclude}
        return convert_with(settings, paths, destination, family, family_options, callbacks)
