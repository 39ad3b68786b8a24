"""Signatures of `unistore.convert`, one a family, for editors and type checkers.

Written by ``python -m unistore.conversion.write_signatures`` from the options that families declare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, cast, overload

if TYPE_CHECKING:
    from distributed import Client

    from unistore.conversion.runner import Report
    from unistore.system.progress import Progress

PathLike = str | os.PathLike[str]
Sources = PathLike | Iterable[PathLike]


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
    progress: Progress | bool | None
    exclude: str | Sequence[str]


class _Ct(_Shared, total=False):
    """CT volumes: folders of .npy, case folders.

    Attributes
    ----------
    window
        HU window to store: lung, bone, soft_tissue, brain, mediastinum, or name:width:level.
    sparse
        How a window's voxels are stored: coordinates, packed mask, or whichever is smaller. Default: 'auto'.
    tile
        Chunk of an image in voxels. Default: (32, 32, 32).
    resolution
        Which ct_original_N.npy to take where a case has several.
    values
        What images of few whole values in 0…255 hold: hu. Else a window of them is refused.
    info_order
        Order of spacing, origin, direction in info.json: zyx as the array's axes, xyz as ITK.
    """

    window: str | Sequence[str]
    sparse: Literal["auto", "coords", "mask"]
    tile: tuple[int, int, int]
    resolution: int | None
    values: Literal["hu"] | None
    info_order: Literal["zyx", "xyz"] | None


class _PointCloud(_Shared, total=False):
    """Point clouds in HDF5: PointSuite, PointNet family, others.

    Attributes
    ----------
    voxel_size
        Precompute a voxel grid of this size.
    map
        Where a field is, if its own name does not tell: x=cloud/East.
    segment
        Cut clouds without segments into XY windows.
    min_points
        Windows with fewer points are no segments. Default: 1.
    max_points
        Windows with more points are halved until none has more.
    columns
        What to do with fields that only some files have: refuse, fill, leave out. Default: 'exact'.
    """

    voxel_size: float | Sequence[float]
    map: Mapping[str, str]
    segment: str | None
    min_points: int
    max_points: int | None
    columns: Literal["exact", "union", "intersection"]


class _Rows(_Shared, total=False):
    """Plain arrays: HDF5, .npy, .npz.

    Attributes
    ----------
    map
        Where a field is, if its own name does not tell: x=cloud/East.
    columns
        What to do with fields that only some files have: refuse, fill, leave out. Default: 'exact'.
    reverse_axes
        HDF5 arrays have their rows on the last axis, as MATLAB writes them. Default: False.
    """

    map: Mapping[str, str]
    columns: Literal["exact", "union", "intersection"]
    reverse_axes: bool


class _Spike(_Shared, total=False):
    """Spike cameras: sequences, .dat streams, .npy, .npz.

    Attributes
    ----------
    height
        Rows of a .dat frame in pixels.
    width
        Columns of a .dat frame in pixels.
    layout
        Eight pixels a byte, or one; auto decides from bytes and sizes, once, and says why. Default: 'auto'.
    flip
        Whether .dat holds its bottom row first. Default: True.
    voxel_bins
        Precompute a voxel grid with this number of bins.
    frames
        Blur and sharp frames as lossless tiles (a crop reads a crop), or the files' own bytes. Default:
        'tiles'.
    convert_images
        Accept gray, 16-bit and transparent frames. Default: False.
    columns
        What to do with folders that only some sequences have: refuse, leave out. Default: 'exact'.
    spike_dir
        Folder of a sequence's spikes. Default: 'spike'.
    voxel_dir
        Folder of voxels that exist; none: leave them out. Default: 'spike_vox'.
    blur_dir
        Folder of blurred frames. Default: 'blur'.
    sharp_dir
        Folder of sharp frames. Default: 'sharp'.
    """

    height: int | None
    width: int | None
    layout: Literal["auto", "packed", "bytes"]
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
    """Robot trajectories in HDF5: robomimic, ACT, D4RL, flat.

    Attributes
    ----------
    image_size
        Store a copy of every camera resized to N × N.
    images
        Decode compressed frames, keep them bit for bit and decode on read, or store --image-size alone.
        Default: 'raw'.
    colour
        swapped: the recorder encoded RGB as if it were BGR. Default: 'standard'.
    map
        Where a field is, if its own name does not tell: x=cloud/East.
    ignore
        Leave datasets out: 'obs/depth_*'.
    columns
        What to do with fields that only some files have: refuse, fill, leave out. Default: 'exact'.
    """

    image_size: int | None
    images: Literal["raw", "keep", "resized"]
    colour: Literal["standard", "swapped"]
    map: Mapping[str, str]
    ignore: str | Sequence[str]
    columns: Literal["exact", "union", "intersection"]


class Convert(Protocol):
    """Convert research files into one sealed store; see `unistore.conversion.convert.convert`."""

    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: None = None,
        **options: Unpack[_Shared],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: Literal["ct"],
        **options: Unpack[_Ct],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: Literal["point_cloud", "point-cloud"],
        **options: Unpack[_PointCloud],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: Literal["rows"],
        **options: Unpack[_Rows],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: Literal["spike"],
        **options: Unpack[_Spike],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: Literal["trajectory"],
        **options: Unpack[_Trajectory],
    ) -> Report: ...
    @overload
    def __call__(
        self,
        sources: Sources,
        destination: PathLike,
        family: str | None,
        **options: Any,
    ) -> Report: ...


def typed(convert: Callable[..., Report]) -> Convert:
    """Declare the function with the signatures of all families."""
    return cast("Convert", convert)
