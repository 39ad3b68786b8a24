"""Whether a file is of a spike recording, by its own name, folder and header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unistore.converters.files.npy.archive import npz_members
from unistore.converters.files.npy.array import read_header
from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.bytes import open_stream
from unistore.converters.spike.frames import IMAGE_ROLES, SUFFIXES
from unistore.converters.spike.images import image_form
from unistore.errors import printable

__all__ = ["recognise"]


def recognise(path: Path, folders: Mapping[str, str]) -> Verdict:
    """Verdict on a file.

    Parameters
    ----------
    path
        The file.
    folders
        Name of the folder of each role.

    Raises
    ------
    InputError
        It is damaged.
    """
    suffix, above, name = path.suffix.lower(), path.parent, printable(path.name)
    role = next((role for role, folder in folders.items() if folder == above.name), None)
    if suffix in SUFFIXES["blur"]:
        return _image(path, name, role, folders)
    if suffix not in SUFFIXES["spike"]:
        return LeftOut(f"is no {', '.join(SUFFIXES['spike'])} file, and no image")
    held = _held(path, name, suffix)
    if role in ("spike", "voxel") and suffix in SUFFIXES[role]:
        return Taken("sequences", f"lies in a {folders[role]}/ folder")
    return held


def _image(path: Path, name: str, role: str | None, folders: Mapping[str, str]) -> Verdict:
    """An image belongs to spikes that stand beside its folder."""
    if role not in IMAGE_ROLES:
        return LeftOut(f"lies in no {' or '.join(f'{folders[each]}/' for each in IMAGE_ROLES)} folder")
    spikes = [folders[each] for each in ("spike", "voxel")]
    beside = next((each for each in spikes if (path.parent.parent / each).is_dir()), None)
    if beside is None:
        return LeftOut(f"lies in {folders[role]}/ without {' or '.join(f'{e}/' for e in spikes)} beside it")
    image_form(path, name)
    return Taken("sequences", f"lies in {folders[role]}/ beside {beside}/")


def _held(path: Path, name: str, suffix: str) -> Verdict:
    """What a file of spikes shows wherever it lies; its header is read."""
    if suffix == ".npy":
        read_header(path, name)
        return LeftOut("is an array outside of a sequence's folders")
    if suffix == ".npz":
        members = npz_members(path, name)
        if "spk" not in members:
            return LeftOut("holds no spk")
        return Taken("array", f"holds spk {members['spk'].header.shape}")
    open_stream(path, name)
    return Taken("stream", "is a headerless .dat stream")
