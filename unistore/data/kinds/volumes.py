"""The `Volumes` and `Patches` sample kinds: a sample is a CT volume, or a patch of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import (
    IMAGE,
    BoxReader,
    WindowedBox,
    box_source,
    box_sources,
    extent_path,
    on_request,
    volume_columns,
    window_limits,
)
from unistore.data.kinds.padding import (
    Pad,
    checked_pad,
    common_shape,
    reach_of_boxes,
    set_sizes,
    valid_masks,
)
from unistore.data.kinds.protocol import (
    PRESENT_SUFFIX,
    Reach,
    SampleIndices,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.packed import Allocate, Batch, offsets_from_lengths, packed_copies, range_of_rows
from unistore.order.permutation import below
from unistore.schemas.ct.fields import FOREGROUND
from unistore.schemas.indices import contradiction, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.types import Int64s, Shape

# Boxes centred on voxels of labels, masks and windows, by the locations that a store holds.

Shares = tuple[tuple[str, float], ...]  # Share of the boxes that are centred on each name
_PARTS = 1 << 31  # Parts into which a share is divided to be drawn
_WORDS = 3  # Random words of a box: which name, which class, which voxel


def shares_of(check: Arguments, foreground: object) -> Shares:
    """Check the argument `foreground` of `Patches`.

    Parameters
    ----------
    check : Arguments
        Collects a problem if the argument is invalid.
    foreground : str, mapping of str to float, or pairs
        A name, or the share of the patches by name.

    Returns
    -------
    tuple of (str, float)
        Each name with its share, above 0. Empty if the argument is invalid.
    """
    shares = {foreground: 1.0} if isinstance(foreground, str) else foreground
    if isinstance(shares, tuple):
        shares = dict(shares)
    is_right = matches_type(shares, Mapping[str, float]) and bool(shares)
    if not check.expect("foreground", foreground, is_right, "a name, or a mapping of names to shares"):
        return ()
    assert isinstance(shares, Mapping)
    numbers = [float(share) for share in shares.values()]
    if min(numbers) <= 0 or sum(numbers) > 1 + 1e-9:
        message = f"has the shares {', '.join(f'{number:g}' for number in numbers)}"
        check.refuse("foreground", message, "give shares above 0 that add up to at most 1")
    return tuple(zip(shares, numbers, strict=True))


class BoxTarget(NamedTuple):
    """The centres of patches: a label, mask or window, or one class of it.

    Attributes
    ----------
    group : str
        Path of its group in the store: ``"labels/seg"``.
    class_number : int or None
        Number of the class. None: any class.
    """

    group: str
    class_number: int | None


class Foreground:
    """Draws the voxels that patches are centred on, from the locations that a store holds.

    Parameters
    ----------
    store : Store
        A store that was converted with ``--foreground-locations``.
    shares : tuple of (str, float)
        Share of the patches for each name of a mask, label, window or class.
    """

    def __init__(self, store: Store, shares: Shares) -> None:
        self._targets = [_Locations(store, name) for name, _ in shares]
        ends = np.cumsum([share for _, share in shares])
        self._ends = np.rint(ends * _PARTS).astype(np.int64)

    def has_any(self, volumes: Int64s) -> bool:
        """Return whether any of these volumes has a voxel to centre a patch on."""
        return any(target.lengths[volumes].any() for target in self._targets)

    def draw(self, picks: SampleIndices, skip: int, volumes: Int64s) -> tuple[Int64s, NDArray[np.int32]]:
        """Draw a voxel for each patch of a batch.

        Parameters
        ----------
        picks : SampleIndices
            The samples of the batch.
        skip : int
            Random numbers of each sample that are already used; the draw takes those that follow.
        volumes : int64 array of shape (B,)
            Volume of each patch.

        Returns
        -------
        centres : int64 array of shape (B, 3)
            Depth, height and width index of the voxel in the stored volume.
        classes : int32 array of shape (B,)
            Class of the voxel. 0: the patch is not centred on anything.
        """
        words = picks.random_words(skip + _WORDS)[:, skip:]
        names = np.searchsorted(self._ends, below(words[:, 0], _PARTS), side="right")
        centres = np.zeros((len(picks), 3), np.int64)
        classes = np.zeros(len(picks), np.int32)
        for i, name in enumerate(names.tolist()):
            if name < len(self._targets):
                classes[i] = self._targets[name].draw(words[i, 1:], int(volumes[i]), centres[i])
        return centres, classes


class _Locations:
    def __init__(self, store: Store, name: str) -> None:
        target = find_target(store, name)
        group = f"{FOREGROUND}/{target.group}"
        self._coords = store.array(f"{group}/coords")
        offsets = whole(store, f"{group}/offsets")
        classes = np.array(store.array(f"{group}/offsets").attributes.get("class_numbers", []), np.int32)
        if not len(classes) or len(offsets) != store.sample_count * len(classes) + 1:
            rows = store.sample_count * len(classes) + 1
            message = (
                f"has {len(offsets):,} rows, expected {rows:,}: one for each volume and class, and 1 more"
            )
            raise contradiction(store, f"{group}/offsets", message)
        self._starts = offsets[:-1].reshape(-1, len(classes))
        self._classes = classes
        self.lengths = np.diff(offsets).reshape(-1, len(classes))
        if target.class_number is not None:
            self.lengths = np.where(classes == target.class_number, self.lengths, 0)

    def draw(self, words: NDArray[np.uint64], volume: int, out: Int64s) -> int:
        present = np.flatnonzero(self.lengths[volume])
        if not len(present):
            return 0
        # A class first, so that a small organ is drawn as often as a large one.
        chosen = int(present[below(words[:1], len(present))[0]])
        number = below(words[1:], int(self.lengths[volume, chosen]))
        out[...] = self._coords.read_rows(self._starts[volume, chosen] + number)[0]
        return int(self._classes[chosen])


def find_target(store: Store, name: str) -> BoxTarget:
    """Return what a name means: ``"lung"``, ``"seg"``, ``"seg:2"``, ``"masks/lung"``, or a class's name."""
    groups = box_sources(store)
    named: dict[str, set[BoxTarget]] = {}
    for key, group in groups.items():
        for one, target in [(key, BoxTarget(group, None)), *_named_classes(store, group)]:
            named.setdefault(one, set()).add(target)
        named.setdefault(group, set()).add(BoxTarget(group, None))
    key, _, number = name.rpartition(":")
    targets = named.get(name, set())
    if key in named and number.isdecimal():
        targets = targets | {BoxTarget(target.group, int(number)) for target in named[key]}
    if not targets:
        shown = [known for known in named if known != "image" and known not in groups.values()]
        message = f"{store.path} has no {name!r}"
        fix = (
            f"use one of {', '.join(shown)}"
            if shown
            else "remove foreground: the store has no masks or labels"
        )
        raise wrong_argument("foreground", message, fix)
    if len(targets) > 1:
        spelled = [
            target.group if target.class_number is None else f"{target.group}:{target.class_number}"
            for target in targets
        ]
        message = f"{name!r} has several meanings in {store.path}"
        raise wrong_argument("foreground", message, f"give one of {', '.join(sorted(spelled))}")
    (target,) = targets
    if not store.has(f"{FOREGROUND}/{target.group}/coords"):
        message = f"{store.path} does not store the locations of {name!r}"
        fix = "convert again: unistore convert ct SOURCES STORE --foreground-locations 10000"
        raise wrong_argument("foreground", message, fix)
    return target


def _named_classes(store: Store, group: str) -> Iterator[tuple[str, BoxTarget]]:
    for path in (f"{group}/label", f"{group}/mask"):
        classes = store.array(path).attributes.get("classes", {}) if store.has(path) else {}
        for number, name in classes.items():
            if number.isdecimal() and int(number) > 0:
                yield str(name), BoxTarget(group, int(number))


class WholeVolumeReader(SampleReader):
    """Reads batches of `Volumes`."""

    def __init__(self, store: Store, kind: Volumes, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        window = None
        if kind.window is not None and "image" in fields:
            limits = window_limits(store, kind.window)
            window = WindowedBox(box_source(store, IMAGE), limits, scale=kind.scale)
        self._volumes = BoxReader(store, fields, kind.pad, kind.step, window)
        extents = self._volumes.extents
        self._units = units
        self._shapes = extents if kind.size is None else np.broadcast_to(np.array(kind.size), extents.shape)
        self._common = common_shape(self._shapes[self._units])

    def __len__(self) -> int:
        return len(self._units)

    def reach(self) -> Reach:
        extents = self._volumes.extents[self._units]
        ones = np.ones(len(extents), np.int64)
        return reach_of_boxes(self._kind, "size", extents, ones, ("boxes of {} voxels", "volumes"))[0]

    def box_shape(self, key: str) -> Shape | None:
        return self._common if key in self._volumes.boxes else None

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        volumes = self._units[picks.index]
        corners = np.zeros((len(volumes), 3), np.int64)
        return self._volumes.read_boxes(volumes, corners, self._shapes[volumes], self._common, allocate)


@dataclass(frozen=True, slots=True)
class Volumes(SampleKind):
    """Samples of a CT store: whole volumes.

    Without `size`, volumes keep their extents. If all have the same extent, batches are dense, (B, D, H, W).
    Otherwise a packed batch has flat values with ``offsets`` and ``shapes`` (B, 3), and a padded batch is
    padded to the largest extent.

    Keys of a sample:

    - ``image`` (D, H, W), in the stored dtype; float32 with `window`.
    - every window, mask and label by its name, (D, H, W): windows and masks as uint8, 0 or 1.
    - ``spacing`` (3,) and ``origin`` (3,), in mm, and ``direction`` (9,), direction cosines row by row,
      if the store has them.
    - ``<mask>_present``, a bool: whether the source has this mask or label.

    Optional keys, read with ``fields=[…]``:

    - ``source``, ``name``, and ``extent`` (3,) of the stored volume.
    - ``affine`` (4, 4), float64: maps (depth, height, width, 1) of the sample to (z, y, x, 1) in mm toward
      head, back and left. NaN if the source does not state it.
    - texts, if the store has them: ``info`` (the case's ``info.json``), ``metadata`` (its row of
      ``metadata.csv``, as JSON), ``header`` (the stored part of the header of its file, as JSON), ``patient``
      and ``series`` (hashes of DICOM identifiers).

    Parameters
    ----------
    window : str, optional
        Limit the image to a CT window: one of the store, a preset (``"lung"``), or ``"name:width:level"``.
        Values below and above become the ends of the window, NaN stays. None: the values as stored.
    scale : bool, default False
        Scale the window to 0…1: ``(value - low) / (high - low)``. Needs `window`.
    size : int or (int, int, int), optional
        Depth, height and width of all samples; one number is a cube. Samples begin at the first voxel of the
        volume: longer axes are cut off at the end, shorter ones are padded there. None: the true extents.
    pad : {"edge", "zero"} or number, optional
        Value of voxels that a volume shorter than `size` does not have. ``"edge"``: the last voxel is
        repeated, in masks too. ``"zero"``, or a number: that value in the image, and 0 in masks. None: a
        volume shorter than `size` is an error.
    step : int, default 1
        Take every `step`-th voxel of each axis, beginning with the first, of images, masks and labels: 2
        makes 256 of 512. ``spacing`` and `size` then refer to the voxels that are taken.

    Raises
    ------
    InputError
        If an argument is invalid: `scale` without `window`, or `pad` without `size`.

    Examples
    --------
    Whole volumes in the lung window, scaled to 0…1:

    >>> dataset = unistore.Dataset("ct.zarr", unistore.Volumes(window="lung", scale=True))  # doctest: +SKIP

    Dense batches (B, 128, 256, 256) of every second voxel:

    >>> kind = unistore.Volumes(size=(128, 256, 256), pad="edge", step=2)  # doctest: +SKIP
    """

    reader: ClassVar = WholeVolumeReader

    window: str | None = None
    scale: bool = False
    size: int | tuple[int, int, int] | None = None
    pad: Pad = None
    step: int = 1

    def __post_init__(self) -> None:
        check = Arguments()
        check.text("window", self.window, none=True)
        check.flag("scale", self.scale)
        if self.scale is True and self.window is None:
            check.refuse("scale", "works only with a window", 'add for example window="lung"')
        check.sizes("size", self.size, 3, none=True)
        check.integer("step", self.step, 1)
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        if self.pad in ("valid", "drop") or (self.pad is not None and self.size is None):
            fix = 'give size=…, and pad="edge", pad="zero" or a number'
            check.refuse("pad", f"{self.pad!r} does not work here", fix)
        check.raise_problems()
        set_sizes(self, "size", 3)

    @property
    def repeats(self) -> bool:
        return True

    @property
    def whole(self) -> SampleKind | None:
        return replace(self, size=None, pad=None)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, extent_path(store))
        if self.window is not None:
            window_limits(store, self.window)
        return select_keys([*box_sources(store), *volume_columns(store)], fields, on_request(store))

    def validity(self, store: Store, key: str) -> tuple[str, ...]:
        name = f"{key}{PRESENT_SUFFIX}"
        return (name,) if name in volume_columns(store) else ()


# Samples of CT volumes that are boxes: drawn anew each epoch, or the cells of a grid.


class PatchReader(SampleReader):
    """Reads batches of `Patches`."""

    def __init__(self, store: Store, kind: Patches, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._fields = fields
        self._volumes = BoxReader(store, fields, kind.pad, kind.step)
        extents = self._volumes.extents
        counts = kind.cells(extents[units]).prod(axis=1)
        if kind.random:
            counts = np.full(len(units), kind.per_volume)
        nouns = ("boxes of {} voxels", "volumes")
        self._reach, has_samples = reach_of_boxes(kind, "size", extents[units], counts, nouns)
        self._numbers = np.flatnonzero(has_samples)
        self._units = units[self._numbers]
        self._extents = extents[self._units]
        self._first = offsets_from_lengths(counts[self._numbers])
        self._foreground = Foreground(store, kind.shares) if kind.shares else None
        is_pointless = self._foreground is not None and not self._foreground.has_any(self._units)
        if is_pointless and len(self._units):
            names = ", ".join(name for name, _ in kind.shares)
            message = f"none of these {len(self._units):,} volumes of {store.path} has a voxel of {names}"
            raise wrong_argument("foreground", message, "remove foreground, or give another name")

    def __len__(self) -> int:
        return int(self._first[-1])

    def box_shape(self, key: str) -> Shape | None:
        return self._kind.shape if key == "valid" or key in self._volumes.boxes else None

    def reach(self) -> Reach:
        return self._reach

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        which = range_of_rows(self._first, picks.index)
        corners = self._corners(picks, which)
        classes = np.zeros(len(picks), np.int32)
        if self._foreground is not None:
            classes = self._centre(picks, which, corners)
        shape = self._kind.shape
        sizes = np.tile(np.array(shape), (len(picks), 1))
        batch = self._volumes.read_boxes(self._units[which], corners, sizes, shape, allocate)
        inside = np.minimum(sizes, self._extents[which] - corners)
        numbers = {"corner": corners, "valid_extent": inside, "foreground": classes}
        batch |= packed_copies(numbers, self._fields, allocate)
        if "valid" in self._fields:
            batch["valid"] = valid_masks("valid", sizes, inside, shape, allocate)
        return batch

    def _room(self, which: Int64s) -> Int64s:
        room: Int64s = np.maximum(self._extents[which] - self._kind.shape, 0)
        return room

    def _centre(self, picks: SampleIndices, which: Int64s, corners: Int64s) -> NDArray[np.int32]:
        assert self._foreground is not None
        centres, classes = self._foreground.draw(picks, corners.shape[1], self._units[which])
        moved = centres // self._kind.step - np.array(self._kind.shape) // 2
        corners[...] = np.where(classes[:, None] > 0, np.clip(moved, 0, self._room(which)), corners)
        return classes

    def cell(self, index: int) -> GridCell:
        """Return the grid cell that is sample `index`, for `stitch`."""
        picks = SampleIndices(np.array([index]), np.zeros(1, np.int64))
        which = range_of_rows(self._first, picks.index)
        (corner,) = self._corners(picks, which).tolist()
        (extent,) = self._extents[which].tolist()
        cells = int(self._kind.cells(self._extents[which]).prod())
        return GridCell(int(self._numbers[which[0]]), tuple(corner), tuple(extent), cells)

    def _corners(self, picks: SampleIndices, which: Int64s) -> Int64s:
        if self._kind.random:
            return picks.below(self._room(which) + 1)
        cell = picks.index - self._first[which]
        _, height, width = self._kind.cells(self._extents[which]).T
        places = np.stack((cell // (height * width), cell // width % height, cell % width), axis=1)
        corners: Int64s = np.minimum(places * self._kind.strides, self._room(which))
        return corners


@dataclass(frozen=True, slots=True)
class Patches(SampleKind):
    """Samples of a CT store: patches of one size, at random or in a grid.

    Batches are dense: ``image`` of a batch has shape (B, d, h, w).

    Keys of a sample:

    - the keys of `Volumes`, with (d, h, w) of `size` instead of (D, H, W).
    - ``corner`` (3,), int64: index of the first voxel of the patch in the volume, counted in steps.
    - ``valid_extent`` (3,), int64, with ``pad="valid"``: number of voxels, from the corner on, that are
      inside the volume.

    Optional keys, read with ``fields=[…]``:

    - the optional keys of `Volumes`, and ``valid_extent`` with any `pad`.
    - ``valid`` (d, h, w), bool: True inside the volume.
    - ``foreground``, int32, with `foreground`: class of the voxel that the patch is centred on. 0: the patch
      is uniform.

    Parameters
    ----------
    size : int or (int, int, int), default 96
        Depth, height and width in voxels. One number is a cube.
    random : bool, default True
        True: the corner is uniform over the volume, another one in every epoch. False: patches are the cells
        of a grid that covers the volume. The last cell of an axis is moved back to end with the volume.
    per_volume : int, default 1
        Number of random patches of each volume in an epoch.
    pad : {"edge", "zero", "valid", "drop"} or number, optional
        Value of voxels outside a volume that is smaller than the patch. ``"edge"``: the last voxel is
        repeated, in masks too. ``"zero"``, or a number: that value in the image, and 0 in masks.
        ``"valid"``: zeros, and the key ``valid_extent``. ``"drop"``: such volumes have no samples. None:
        such a patch is an error, which states the largest size that fits.
    step : int, default 1
        Take every `step`-th voxel of each axis. Patches are then patches of ``Volumes(step=step)``.
    overlap : float, default 0.0
        Share of a patch, on each axis, that it has in common with the next cell of the grid: 0.5 halves
        the distance between cells. Needs ``random=False``. `unistore.stitch` joins predictions of the cells.
    foreground : str or dict of str to float, optional
        Centre patches on voxels of a mask, label or window, as far as the border of the volume allows. A
        string is its name, the name of a class of a label, or ``"seg:2"``. A class that the volume has is
        drawn first, then one of its voxels, from those that ``unistore convert --foreground-locations``
        stored. A dict states the share of the patches by name: with ``{"tumour": 0.3, "liver": 0.1}``,
        0.6 of the patches are uniform. In volumes that do not have it, patches are uniform. None: all are
        uniform.

    Raises
    ------
    InputError
        If an argument is invalid, or does not fit `random`. Reading raises it if patches are larger than
        their volumes and `pad` is None, or if no volume has a voxel of `foreground`.

    Examples
    --------
    Four random patches per volume and epoch, half of them centred on a tumour:

    >>> kind = unistore.Patches(96, per_volume=4, foreground={"tumour": 0.5})  # doctest: +SKIP

    A grid for inference, with cells that overlap by half:

    >>> kind = unistore.Patches(96, random=False, overlap=0.5, pad="edge")  # doctest: +SKIP
    """

    reader: ClassVar = PatchReader

    size: int | tuple[int, int, int] = (96, 96, 96)
    random: bool = True
    per_volume: int = 1
    pad: Pad = None
    step: int = 1
    overlap: float = 0.0
    foreground: str | Mapping[str, float] | Shares | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.sizes("size", self.size, 3)
        check.flag("random", self.random)
        if check.integer("per_volume", self.per_volume, 1) and self.per_volume != 1 and not self.random:
            message = f"is {self.per_volume}, but with random=False a grid covers each volume once"
            check.refuse("per_volume", message, "remove per_volume, or give random=True")
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        check.integer("step", self.step, 1)
        is_share = matches_type(self.overlap, float) and 0 <= self.overlap < 1
        if check.expect("overlap", self.overlap, is_share, "a number of at least 0 and below 1"):
            object.__setattr__(self, "overlap", float(self.overlap))
            if self.overlap and self.random is True:
                check.refuse("overlap", "works only with a grid", "give random=False, or remove overlap")
        if self.foreground is not None:
            if self.random is False:
                fix = "remove foreground, or remove random=False"
                check.refuse("foreground", "works only with random patches", fix)
            object.__setattr__(self, "foreground", shares_of(check, self.foreground))
        check.raise_problems()
        set_sizes(self, "size", 3)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Depth, height and width of a patch in voxels."""
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def shares(self) -> Shares:
        """Share of the patches that are centred on each name: pairs of name and share."""
        assert not isinstance(self.foreground, (str, Mapping))
        return self.foreground or ()

    def cells(self, extents: Int64s) -> Int64s:
        """Return the number of grid cells along each axis, (V, 3) int64, for volumes of `extents` (V, 3)."""
        room = np.maximum(extents - self.shape, 0)
        cells: Int64s = -(-room // self.strides) + 1
        return np.where(extents > 0, cells, 0)

    @property
    def strides(self) -> Int64s:
        """Number of voxels from one grid cell to the next, (3,) int64."""
        return np.maximum(1, np.rint(np.array(self.shape) * (1 - self.overlap))).astype(np.int64)

    @property
    def whole(self) -> SampleKind | None:
        return Volumes(step=self.step)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, extent_path(store))
        for name, _ in self.shares:
            find_target(store, name)
        keys = [*box_sources(store), "corner", *volume_columns(store)]
        keys += ["valid_extent"] if self.pad == "valid" else []
        further = ["valid", "valid_extent"] + (["foreground"] if self.shares else [])
        return select_keys(keys, fields, (*on_request(store), *further))


class GridCell(NamedTuple):
    """A cell of the grid of a volume.

    Attributes
    ----------
    volume : int
        Number of its volume among the volumes of the split.
    corner : tuple of int
        Index of its first voxel: depth, height and width, in steps.
    extent : tuple of int
        Depth, height and width of the volume, in steps.
    cells : int
        Number of cells that cover the volume.
    """

    volume: int
    corner: tuple[int, ...]
    extent: Shape
    cells: int
