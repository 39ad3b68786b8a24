"""Recognising files of spike recordings by name, folder and header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.frames import IMAGE_ROLES, has_role_suffix, suffixes_of
from unistore.converters.spike.images import read_image_header
from unistore.converters.spike.layouts import format_of
from unistore.errors import printable

__all__ = ["recognise"]


def recognise(path: Path, folders: Mapping[str, str]) -> Verdict:
    """Verdict on a file; `folders` has the folder name of each role.

    Raises
    ------
    InputError
        If it is damaged.
    """
    name = printable(path.name)
    role = next((role for role, folder in folders.items() if folder == path.parent.name), None)
    if any(has_role_suffix(path, each) for each in IMAGE_ROLES):
        return _image(path, name, role, folders)
    if not has_role_suffix(path, "spike"):
        return LeftOut(f"is no {', '.join(suffixes_of('spike'))} file, and no image")
    verdict = format_of(path).look(path, name)
    if role in ("spike", "voxel") and has_role_suffix(path, role):
        return Taken("sequences", f"lies in a {folders[role]}/ folder")
    return verdict


def _image(path: Path, name: str, role: str | None, folders: Mapping[str, str]) -> Verdict:
    """An image is taken if spikes or voxels lie in a folder beside its own."""
    if role not in IMAGE_ROLES:
        return LeftOut(f"lies in no {' or '.join(f'{folders[each]}/' for each in IMAGE_ROLES)} folder")
    spikes = [folders[each] for each in ("spike", "voxel")]
    beside = next((each for each in spikes if (path.parent.parent / each).is_dir()), None)
    if beside is None:
        return LeftOut(f"lies in {folders[role]}/ without {' or '.join(f'{e}/' for e in spikes)} beside it")
    read_image_header(path, name)
    return Taken("sequences", f"lies in {folders[role]}/ beside {beside}/")
