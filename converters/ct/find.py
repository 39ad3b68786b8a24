"""Group files into CT volumes: one per case folder, or one per file of voxels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.ct.files import Grouped
from unistore.converters.ct.layouts import format_of, suffixes
from unistore.converters.ct.layouts.cases import add_case, case_folders, folder_of
from unistore.converters.ct.layouts.foreign import FOREIGN, FOREIGN_CURE, foreign_message, known_formats
from unistore.converters.ct.layouts.loose import add_loose
from unistore.converters.ct.layouts.metadata import tables_of
from unistore.converters.ct.names import INFO, METADATA, POINTS
from unistore.converters.files.paths import expand, natural_key, relative_names
from unistore.converters.parts import Found, Part
from unistore.errors import Problem


def find_volumes(
    paths: Sequence[Path], known: Collection[str] = (), exclusion: Exclusion | None = None
) -> Found:
    """Group the files of the given paths into volumes: one `Part` each, with its `VolumeFiles`.

    Parameters
    ----------
    paths
        Files and folders as the user gave them.
    known
        Names of windows besides the presets.
    exclusion
        Files of other families are skipped.

    Raises
    ------
    InputError
        If a path does not exist, is empty, or is a link out of the given paths.
    """
    grouped = Grouped()
    given = {path.parent.resolve() / path.name for path in paths if not path.is_dir()}
    roots = [path if path.is_dir() else path.parent for path in paths]
    arrays: list[Path] = []
    infos: set[Path] = set()
    tables: set[Path] = set()
    for file in expand(paths, (*suffixes(), POINTS, INFO, METADATA, *FOREIGN)):
        name = file.name.lower()
        if exclusion is not None and exclusion.is_other_family(file):
            continue
        if format_of(file) or name.endswith(POINTS):
            arrays.append(file)
        elif name == INFO:
            infos.add(file)
        elif name == METADATA and file not in given:
            tables.add(file)
        elif file in given:
            grouped.problems.append(_unread(file))
        else:
            grouped.left_out.append((file, foreign_message(file) or f"is no {known_formats()} file"))
    cases = case_folders(arrays, infos, roots)
    outside: list[Path] = []
    for file in arrays:
        cases.get(folder_of(file), outside).append(file)
    for folder, files in cases.items():
        add_case(folder, files, infos, known, grouped)
        grouped.volumes[-1].metadata = next((each for each in tables_of(folder) if each in tables), None)
    add_loose(outside, given, known, grouped)
    grouped.left_out += [(file, "lies in no case folder") for file in infos - {case / INFO for case in cases}]
    used = {volume.metadata for volume in grouped.volumes}
    grouped.left_out += [(file, f"is no {known_formats()} file") for file in tables - used]
    if not grouped.volumes and not grouped.problems:
        grouped.problems = _nothing(paths, [file for file, _ in grouped.left_out])
    return _found(grouped, tuple(paths))


def _found(grouped: Grouped, roots: tuple[Path, ...]) -> Found:
    volumes = sorted(grouped.volumes, key=lambda volume: natural_key(volume.path.as_posix()))
    names = relative_names([volume.path for volume in volumes])
    return Found(
        parts=[
            Part(name=name, files=volume.paths(), roots=roots, detail=volume)
            for name, volume in zip(names, volumes, strict=True)
        ],
        left_out=sorted(grouped.left_out, key=lambda each: natural_key(each[0].as_posix())),
        notes=grouped.notes,
        problems=grouped.problems,
    )


def _nothing(paths: Sequence[Path], left_out: Sequence[Path]) -> list[Problem]:
    """Problems if there is no volume: the files of other formats, if there are any."""
    foreign = [_unread(file) for file in sorted(left_out) if foreign_message(file)]
    listed = ", ".join(map(str, paths))
    return foreign or [Problem(listed, f"no {known_formats()} volume here", "see the CT layouts", "missing")]


def _unread(file: Path) -> Problem:
    """Problem of a given file whose format is not read."""
    read = f"CT volumes are {known_formats()} files"
    foreign = foreign_message(file)
    if foreign:
        return Problem(str(file), f"{foreign}; {read}", FOREIGN_CURE, "format")
    return Problem(str(file), f"is no {known_formats()} file", read, "format")
