"""Samples of CT volumes: whole ones, and boxes at random, in a grid, or centred on labelled voxels."""

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
    """Check a name, or shares by name, and return them as pairs."""
    shares = {foreground: 1.0} if isinstance(foreground, str) else foreground
    if isinstance(shares, tuple):
        shares = dict(shares)
    is_right = matches_type(shares, Mapping[str, float]) and bool(shares)
    if not check.expect("foreground", foreground, is_right, "a name, or shares by name"):
        return ()
    assert isinstance(shares, Mapping)
    numbers = [float(share) for share in shares.values()]
    if min(numbers) <= 0 or sum(numbers) > 1 + 1e-9:
        check.refuse("foreground", f"has the shares {numbers}", "numbers above 0, of 1 at most together")
    return tuple(zip(shares, numbers, strict=True))


class BoxTarget(NamedTuple):
    """What boxes are centred on: a label, mask or window, or one class of it."""

    group: str  # "labels/seg"
    class_number: int | None  # None: any class


class Foreground:
    """Draws voxels of labels, masks and windows, from the locations of a store."""

    def __init__(self, store: Store, shares: Shares) -> None:
        self._targets = [_Locations(store, name) for name, _ in shares]
        ends = np.cumsum([share for _, share in shares])
        self._ends = np.rint(ends * _PARTS).astype(np.int64)

    def has_any(self, volumes: Int64s) -> bool:
        return any(target.lengths[volumes].any() for target in self._targets)

    def draw(self, picks: SampleIndices, skip: int, volumes: Int64s) -> tuple[Int64s, NDArray[np.int32]]:
        """Draw the voxels (B, 3) that boxes are centred on, and their classes (B,), 0 for uniform boxes."""
        # Random numbers are those that follow the first `skip` of each sample
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
            message = f"has {len(offsets)} rows, not one for each volume and class, and 1"
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
        message = f"{store.path} has no {name!r}; it has {', '.join(shown) or 'none'}"
        raise wrong_argument("foreground", message)
    if len(targets) > 1:
        spelled = [
            target.group if target.class_number is None else f"{target.group}:{target.class_number}"
            for target in targets
        ]
        message = f"{name!r} is several things in {store.path}"
        raise wrong_argument("foreground", message, f"give one: {', '.join(sorted(spelled))}")
    (target,) = targets
    if not store.has(f"{FOREGROUND}/{target.group}/coords"):
        message = f"{store.path} has no locations of {name!r}"
        fix = "unistore convert ct SOURCES STORE --foreground-locations 10000"
        raise wrong_argument("foreground", message, fix)
    return target


def _named_classes(store: Store, group: str) -> Iterator[tuple[str, BoxTarget]]:
    for path in (f"{group}/label", f"{group}/mask"):
        classes = store.array(path).attributes.get("classes", {}) if store.has(path) else {}
        for number, name in classes.items():
            if number.isdecimal() and int(number) > 0:
                yield str(name), BoxTarget(group, int(number))


class WholeVolumeReader(SampleReader):
    """Reads volumes."""

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
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype. Every window and mask by its name, (D, H, W) u1 of 0 and 1.
    ``spacing``, ``origin``, ``direction`` if stored, ``<mask>_present``. On request: ``source``, ``name``,
    ``extent`` (3,) of the stored volume, ``affine`` (4, 4) float64 from (depth, height, width, 1) of the
    sample to (z, y, x, 1) in mm toward head, back and left, NaN where the source states less, ``info`` (the
    text of the case's ``info.json``), ``metadata`` (its row of ``metadata.csv``, as JSON), ``header`` (what
    is kept of that of its file, as JSON), ``patient`` and ``series`` (digests of DICOM).

    Batches are dense, (B, D, H, W), if all volumes have one extent. Else volumes are ragged: packed batches
    have flat values with ``offsets`` and ``shapes`` (B, 3), padded ones are padded to the largest.

    Parameters
    ----------
    window
        Limit the image to an intensity window: one of the store, a preset (``"lung"``), or
        ``"name:width:level"``. Values below and above become its ends. NaN stays. The image is float32 then.
    scale
        Scale the window to 0…1: (value - low) / (high - low).
    size
        Depth, height and width of all samples, dense in a batch. One number is a cube. Their first
        voxel is the volume's: what is longer is cut off at the end, what is shorter is padded there. None:
        the true extents.
    pad
        What is padded with: ``"edge"``, the last voxel, of masks too. ``"zero"``, or a number, of the image:
        masks are 0. None: volumes shorter than `size` are refused.
    step
        Take every `step`-th voxel of each axis, the first one included, of images, masks and labels alike: 2
        makes 256 of 512. ``spacing`` is that of the voxels taken. `size` counts them.
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
            check.refuse("scale", "scales a window to 0…1: name the window", 'window="lung"')
        check.sizes("size", self.size, 3, none=True)
        check.integer("step", self.step, 1)
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        if self.pad in ("valid", "drop") or (self.pad is not None and self.size is None):
            check.refuse("pad", f"is {self.pad!r}", 'size= with pad="edge", "zero" or a number')
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
    """Reads boxes."""

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
            message = f"{store.path}: none of these {len(self._units)} volumes has a voxel of {names}"
            raise wrong_argument("foreground", message, "leave it out, or name another")

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
    """Samples of a CT store: boxes of one size.

    Keys: as `Volumes`, with (d, h, w) of `size` in place of (D, H, W), and ``corner`` (3,) int64, the box's
    first voxel, counted in steps. On request, the former always under ``pad="valid"``: ``valid_extent`` (3,)
    int64, how far the volume reaches into the box from its corner. ``valid`` (d, h, w) bool, True inside the
    volume. With `foreground`, ``foreground`` () int32: the class of the voxel that the box is centred on, 0
    of a uniform box.

    Parameters
    ----------
    size
        Depth, height and width in voxels. One number is a cube.
    random
        True: the corner is uniform over the volume, another one each epoch. False: the cells of a grid that
        covers the volume. The last cell of an axis is moved back so that it ends with the volume.
    per_volume
        Random boxes of each volume an epoch.
    pad
        What a box has behind a volume that is smaller than it. None: such boxes are refused, with the
        largest size that fits. ``"edge"``: the last voxel is repeated, of masks too. ``"zero"``: zeros. A
        number: that, of the image. Masks are 0. ``"valid"``: zeros, with ``valid_extent`` among the keys.
        ``"drop"``: volumes smaller than the box have no samples.
    step
        Take every `step`-th voxel of each axis, as `Volumes` does: boxes are those of ``Volumes(step=…)``.
    overlap
        Share of a box, on each axis, that the next cell of a grid has in common with it: 0.5 halves the step.
        `unistore.stitch` joins predictions of the cells.
    foreground
        Centre boxes on voxels of a mask, label or window, as far as the volume's border allows: by its name,
        by the name of a class of a label, or ``"seg:2"``. A class of the volume is drawn first, then one of
        its voxels, from those that ``unistore convert --foreground-locations`` stored. Shares by name:
        ``{"tumour": 0.3, "liver": 0.1}``, and 0.6 of the boxes are uniform. In volumes that lack it, boxes
        are uniform.
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
            check.refuse(
                "per_volume", f"is {self.per_volume}, and random is False: a grid covers each volume once"
            )
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        check.integer("step", self.step, 1)
        is_share = matches_type(self.overlap, float) and 0 <= self.overlap < 1
        if check.expect("overlap", self.overlap, is_share, "a share of a box, from 0 to below 1"):
            object.__setattr__(self, "overlap", float(self.overlap))
            if self.overlap and self.random is True:
                check.refuse("overlap", "is of the cells of a grid", "random=False")
        if self.foreground is not None:
            if self.random is False:
                check.refuse("foreground", "is of random boxes", "leave it or random=False out")
            object.__setattr__(self, "foreground", shares_of(check, self.foreground))
        check.raise_problems()
        set_sizes(self, "size", 3)

    @property
    def shape(self) -> tuple[int, int, int]:
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def shares(self) -> Shares:
        """Return the share of the boxes that are centred on each name."""
        assert not isinstance(self.foreground, (str, Mapping))
        return self.foreground or ()

    def cells(self, extents: Int64s) -> Int64s:
        """Return how many cells of the grid volumes of `extents` (V, 3) have along each axis, (V, 3)."""
        room = np.maximum(extents - self.shape, 0)
        cells: Int64s = -(-room // self.strides) + 1
        return np.where(extents > 0, cells, 0)

    @property
    def strides(self) -> Int64s:
        """Return the voxels from one cell of the grid to the next, (3,)."""
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
    """Where a cell of a grid lies."""

    volume: int  # number of its volume among those of the split
    corner: tuple[int, ...]  # its first voxel
    extent: Shape  # depth, height and width of the volume, in steps
    cells: int  # that cover the volume
