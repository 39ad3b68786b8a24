"""Boxes centred on voxels of labels, masks and windows, by the locations that a store holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import box_sources
from unistore.data.kinds.protocol import Picks
from unistore.order.permutation import below
from unistore.schemas.ct.fields import FOREGROUND
from unistore.schemas.indices import contradiction, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.hints import Int64s

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
        """Return whether any of these volumes has a voxel of any of the names."""
        return any(target.lengths[volumes].any() for target in self._targets)

    def draw(self, picks: Picks, skip: int, volumes: Int64s) -> tuple[Int64s, NDArray[np.int32]]:
        """Draw the voxels (B, 3) that boxes are centred on, and their classes (B,), 0 for uniform boxes."""
        # Random numbers are those that follow the first `skip` of each sample
        words = picks.words(skip + _WORDS)[:, skip:]
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
        cure = "unistore convert ct SOURCES STORE --foreground-locations 10000"
        raise wrong_argument("foreground", message, cure)
    return target


def _named_classes(store: Store, group: str) -> Iterator[tuple[str, BoxTarget]]:
    for path in (f"{group}/label", f"{group}/mask"):
        classes = store.array(path).attributes.get("classes", {}) if store.has(path) else {}
        for number, name in classes.items():
            if number.isdecimal() and int(number) > 0:
                yield str(name), BoxTarget(group, int(number))
