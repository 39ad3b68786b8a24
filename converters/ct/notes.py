"""Notes of a CT scan: how files were interpreted, and what volumes lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from unistore.converters.ct.agreement import Agreement
from unistore.converters.ct.headers import ScannedVolume
from unistore.converters.ct.layouts import suffix_of
from unistore.converters.ct.names import METADATA
from unistore.converters.files.paths import natural_key
from unistore.errors import printable
from unistore.schemas.ct.windows import Window


def notes_of(
    volumes: Sequence[ScannedVolume],
    agreement: Agreement,
    asked: Sequence[Window],
    sparse: str,
) -> list[str]:
    """Notes of one line each."""
    files = [volume.files.path for volume in volumes if not volume.files.path.is_dir()]
    cases = len(volumes) - len(files)
    notes = []
    if cases:
        notes.append(f"case folders, one volume each: {cases}")
    endings = Counter(map(suffix_of, files))
    notes += [f"{ending} files outside case folders, one volume each: {n}" for ending, n in endings.items()]
    alone = [volume for volume in volumes if volume.image is None and volume.windows]
    if alone:
        first = printable(next(iter(alone[0].windows.values())).path.name)
        notes.append(
            f"window masks without intensities, by their names: {len(alone)} volumes, such as {first}"
        )
    byte = [volume for volume in volumes if volume.image and volume.image.dtype == np.uint8]
    if byte:
        name = printable(byte[0].files.path.name)
        notes.append(f"uint8 images, not HU (no window in their names): {len(byte)} volumes, such as {name}")
    if agreement.windows:
        listed = ", ".join(str(window) for window in agreement.windows)
        form = "points or bits, whichever is smaller" if sparse == "auto" else sparse
        notes.append(f"windows {listed}: stored as {form}")
    brought = ", ".join(str(window) for window in agreement.windows if window not in asked)
    if brought:
        notes.append(f"windows that are files: {brought}")
    rows = [volume.metadata for volume in volumes if volume.files.metadata]
    if "" in rows:
        notes.append(f"{METADATA}: no row of {rows.count('')} of {len(rows)} volumes, by name")
    floats = [w for volume in volumes for w in volume.windows.values() if w.dtype.kind == "f"]
    if floats:
        first = printable(floats[0].path.name)
        notes.append(f"windows of floats, masks or scaled to 0…1: {len(floats)} files, such as {first}")
    for name in sorted({name for volume in volumes for name in volume.labels}, key=natural_key):
        labelled = [volume for volume in volumes if name in volume.labels and volume.image]
        for volume in labelled[:1]:
            label, image = printable(volume.labels[name].path.name), printable(volume.files.path.name)
            what = f"labels/{name}: {len(labelled)} volumes, paired by names: {label} with {image}"
            notes.append(what if volume.files.path.is_dir() else f"{what}; as plain arrays: convert rows")
    for kind in ("windows", "masks", "labels", "sdf"):
        for name in sorted({name for volume in volumes for name in getattr(volume, kind)}, key=natural_key):
            missing = sum(name not in getattr(volume, kind) for volume in volumes)
            if missing and (kind != "windows" or alone):
                notes.append(f"{kind}/{name}: {missing} of {len(volumes)} volumes have none")
    unused = sum(bool(v.sparse) and bool(v.image or set(v.sparse) & set(v.windows)) for v in volumes)
    if unused:
        notes.append(f"sparse .npz windows of {unused} volumes were not used: dense files have the same")
    return notes
