"""The problem of paths without sources: what is there instead, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unistore.converters.files.paths import is_inside, is_store
from unistore.converters.registry import families, get_family
from unistore.converters.survey import Survey
from unistore.errors import Problem, first_few

_SHOWN = 3


def nothing_found(paths: Sequence[Path], surveyed: Survey, family: str = "") -> Problem:
    """Problem that names stores, an empty folder, other families or unread formats under existing paths.

    `family` is the family that the user named; empty: any.
    """
    listed = ", ".join(map(str, paths))
    wanted = family.replace("_", " ")
    others = [each for each in surveyed.counts().items() if each[0] != family]
    if stores := [path for path in paths if path.is_dir() and is_store(path)]:
        cure = f"'unistore export {stores[0]} DST' gives its files back; other Zarr: save its arrays as .npy"
        if (stores[0] / "zarr.json").exists():
            return Problem(str(stores[0]), "is a store already, or other Zarr", cure, "zarr")
        return Problem(str(stores[0]), "is Zarr, which is no source", "save its arrays as .npy", "zarr")
    if empty := [path for path in paths if path.is_dir() and not any(path.iterdir())]:
        return Problem(str(empty[0]), "is an empty folder", "check the path", "missing")
    if others:
        counts = " and ".join(f"{count} of {name.replace('_', ' ')}" for name, count in others)
        commands = " or ".join(f"unistore convert {get_family(name).command}" for name, _ in others)
        return Problem(listed, f"holds no source of {wanted}, but {counts}", commands, "family")
    if unread := surveyed.unread():
        message = f"holds nothing that is read: {first_few(unread, _SHOWN, '; ')}"
        cure = "load them with their own library and save the values as .npy or HDF5"
        return Problem(listed, message, cure, "format")
    links = (link for path in paths for link in path.rglob("*") if not is_inside(link, paths))
    if (link := next(links, None)) is not None:
        return Problem(str(link), "is a link out of the given paths", "name what it leads to", "link")
    known = ", ".join(sorted(each.command for each in families().values()))
    message = f"holds no source of {wanted or f'any family ({known})'}: not recognised"
    cure = "unistore inspect says more; or name the family: unistore convert FAMILY SRC... DST"
    return Problem(listed, message, cure, "unknown")
