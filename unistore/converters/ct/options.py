"""Options of CT volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unistore.errors import InputError, Problem
from unistore.plugin import LabelOptions, option
from unistore.schemas.ct.windows import Window, parse_window

INFO = "info.json"  # describes the volume of its case folder
METADATA = "metadata.csv"  # has a row for each of a set of case folders
# Names the classes of `labelsTr/`, in nnU-Net and the Medical Segmentation Decathlon.
DATASET = "dataset.json"
COMPANIONS = (INFO, METADATA, DATASET)  # texts about volumes
FORMATS = ("npy", "hdf5", "nifti", "dicom", "metaimage", "nrrd", "tiff")  # formats of voxels


@dataclass(frozen=True, kw_only=True)
class CtOptions(LabelOptions):
    """Options of CT volumes."""

    window: tuple[str, ...] = option(
        (),
        "HU window to store: lung, bone, soft_tissue, brain, mediastinum, or name:width:level.",
        metavar="NAME[:WIDTH:LEVEL]",
    )
    sparse: Literal["auto", "coords", "mask"] = option(
        "auto", "How a window's voxels are stored: coordinates, packed mask, or whichever is smaller."
    )
    tile: tuple[int, int, int] = option(
        (32, 32, 32), "Chunk of an image in voxels.", metavar="DEPTH HEIGHT WIDTH", least=1
    )
    resolution: int | None = option(
        None, "Which ct_original_N.npy to take where a case has several.", metavar="N"
    )
    values: Literal["hu"] | None = option(
        None, "hu: images hold HU even if all values are in -200…255. Else a window of them is refused."
    )
    info_order: Literal["zyx", "xyz"] | None = option(
        None, "Order of spacing, origin, direction in info.json: zyx as the array's axes, xyz as ITK."
    )
    keep_names: bool = option(
        False,
        "Store the folders of DICOM series, which may name patients; else series have numbers alone.",
        late=True,
    )
    foreground_locations: int | None = option(
        None,
        "Store up to N voxels of each class, mask and window of a volume, for Patches(foreground=…): 10000.",
        metavar="N",
        least=1,
        most=1_000_000,
        late=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        windows = dict.fromkeys(parse_window(window) for window in self.window)
        names = [window.name for window in windows]
        problems = [
            Problem(f"--window {name}", "is given with two widths or levels", "rename one", "option")
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        if problems:
            raise InputError(problems)
        texts = tuple(f"{window.name}:{float(window.width)!r}:{float(window.level)!r}" for window in windows)
        object.__setattr__(self, "window", texts)

    @property
    def windows(self) -> list[Window]:
        """Windows that the user asks for."""
        return [parse_window(text) for text in self.window]

    @property
    def window_names(self) -> list[str]:
        """Their names."""
        return [window.name for window in self.windows]
