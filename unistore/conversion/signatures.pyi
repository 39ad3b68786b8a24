# Written by tools/write_signatures.py from the options that families declare.
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from distributed import Client

from unistore.conversion.run import Report
from unistore.converters.detection import Detection
from unistore.system.progress import Progress

PathLike = str | os.PathLike[str]

class _Shared(TypedDict, total=False):
    codec: str
    split: str | Mapping[str, float] | None
    split_by: str
    split_seed: int
    split_from: PathLike | None
    group_by: str | None
    overwrite: bool
    restart: bool
    work: PathLike | None
    workers: int
    scheduler: str | Client | None
    memory: str | int | None
    on_error: str
    wait: float | None
    part: str | None
    seal: bool
    progress: Progress | bool | None
    exclude: str | Sequence[str]

class _Ct(_Shared, total=False):
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

class _Events(_Shared, total=False):
    sensor: tuple[int, int] | None
    unit: Literal["auto", "us", "ms", "ns", "s"]
    order: Literal["auto", "txyp", "xytp", "xypt"]
    events: str

class _PointCloud(_Shared, total=False):
    voxel_size: float | Sequence[float]
    map: Mapping[str, str]
    segment: str | None
    min_points: int
    max_points: int | None
    columns: Literal["exact", "union", "intersection"]
    nan: Literal["refuse", "drop"]
    label_map: str | None
    ignore_label: int | None

class _Rows(_Shared, total=False):
    map: Mapping[str, str]
    columns: Literal["exact", "union", "intersection"]
    reverse_axes: bool

class _Spike(_Shared, total=False):
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

class _Trajectory(_Shared, total=False):
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
    **options: Unpack[_Shared],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["ct"],
    **options: Unpack[_Ct],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["events"],
    **options: Unpack[_Events],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["point_cloud", "point-cloud"],
    **options: Unpack[_PointCloud],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["rows"],
    **options: Unpack[_Rows],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["spike"],
    **options: Unpack[_Spike],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: Literal["trajectory"],
    **options: Unpack[_Trajectory],
) -> Report: ...

@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: str | Detection | None,
    **options: Any,
) -> Report: ...
