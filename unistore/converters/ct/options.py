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
    """Options of CT volumes, for `unistore.convert` and for the command line.

    ``unistore convert ct --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("cases/", "ct.zarr", window=("lung", "bone"), sparse="mask")  # doctest: +SKIP
    """

    window: tuple[str, ...] = option(
        (),
        "Store the voxels in this HU window. NAME is lung, bone, soft_tissue, brain or mediastinum, "
        "or a name of "
        "your own with width and level. Example: mine:400:50.",
        metavar="NAME[:WIDTH:LEVEL]",
    )
    sparse: Literal["auto", "coords", "mask"] = option(
        "auto",
        "How to store the voxels of a window. coords stores coordinates, mask one bit per voxel, "
        "auto whichever "
        "is smaller.",
    )
    tile: tuple[int, int, int] = option(
        (32, 32, 32), "Size of the chunks of an image in voxels.", metavar="DEPTH HEIGHT WIDTH", least=1
    )
    resolution: int | None = option(None, "Read ct_original_N.npy if a case has several.", metavar="N")
    values: Literal["hu"] | None = option(
        None,
        "State that images are in HU. Without it, --window is an error for images whose values are all in "
        "-200…255.",
    )
    info_order: Literal["zyx", "xyz"] | None = option(
        None,
        "Order of spacing, origin and direction in info.json. zyx is the order of the array axes, "
        "xyz the order of "
        "ITK.",
    )
    keep_names: bool = option(
        False,
        "Store the folder names of DICOM series, which may contain names of patients. Without it, series are "
        "numbered.",
        late=True,
    )
    foreground_locations: int | None = option(
        None,
        "Store up to N voxels of each class, mask and window of a volume. Patches(foreground=…) reads them. "
        "Example: 10000.",
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
            Problem(
                f"--window {name}", "is given twice, with different widths or levels", "rename one", "option"
            )
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        if problems:
            raise InputError(problems)
        texts = tuple(f"{window.name}:{float(window.width)!r}:{float(window.level)!r}" for window in windows)
        object.__setattr__(self, "window", texts)

    @property
    def windows(self) -> list[Window]:
        """The CT windows that the user asks for."""
        return [parse_window(text) for text in self.window]

    @property
    def window_names(self) -> list[str]:
        """The names of these windows."""
        return [window.name for window in self.windows]
