"""Libraries that are installed by an extra: ``pip install 'unistore[torch]'``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from unistore.errors import MissingLibraryError, missing_library


class Extra(NamedTuple):
    """Libraries that one ``pip install 'unistore[NAME]'`` adds."""

    modules: tuple[str, ...]  # as they are imported
    adds: str  # what unistore can do with them

    @property
    def missing(self) -> list[str]:
        """Modules that cannot be imported here."""
        return [module for module in self.modules if not is_installed(module)]


def is_installed(module: str) -> bool:
    """Return whether a library can be imported, without importing it."""
    if module in sys.modules:  # perhaps half imported by another thread, without a specification
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


EXTRAS: Mapping[str, Extra] = {
    "torch": Extra(("torch",), "samples and batches as tensors, Loader"),
    "images": Extra(("cv2",), "PNG and JPEG images, still pictures of pages"),
    "filters": Extra(("hdf5plugin",), "HDF5 filters besides gzip, bzip2, blosc, zstd and lzf"),
    "medical": Extra(
        ("nibabel", "pydicom", "gdcm", "openjpeg", "nrrd", "tifffile"), "NIfTI, DICOM, NRRD, TIFF"
    ),
    "lidar": Extra(("laspy", "lazrs"), "LAS and LAZ"),
    "bags": Extra(("rosbags",), "ROS 1 and ROS 2 bags, MCAP"),
    "events": Extra(("aedat",), "AEDAT4"),
    "robots": Extra(("av", "pyarrow", "cv2"), "LeRobot, Parquet, video"),
    "cloud": Extra(("obstore",), "s3://, gs://, az:// and https://"),
    "hub": Extra(("huggingface_hub", "obstore"), "hf://, stores and files of the Hugging Face Hub"),
    "cluster": Extra(("dask", "distributed"), "convert and verify on a dask cluster"),
}


def require_torch(what: str) -> None:
    """Say which command installs torch if it is not installed.

    Raises
    ------
    MissingLibraryError
        If it is not installed. The message begins with `what`, such as ``"Loader needs"``.
    """
    require("torch", what, "torch")


def require(module: str, what: str, extra: str) -> None:
    """Say which command installs a library if it is not installed.

    Raises
    ------
    MissingLibraryError
        If it is not installed. The message begins with `what`, such as ``"a.zarr needs"``.
    """
    if not is_installed(module):
        fault, fix = missing_library(module, extra)
        msg = f"{what} {fault}. Fix: {fix}"
        raise MissingLibraryError(msg)
