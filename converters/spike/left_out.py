"""Files and folders under the given paths that belong to no frame, with the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import is_store, natural_key, real_path
from unistore.converters.spike.folders import Recordings, resolve_files
from unistore.converters.spike.frames import IMAGE_ROLES, has_known_suffix, has_role_suffix, suffixes_of
from unistore.converters.spike.search import relative_name
from unistore.errors import printable

Reasons = list[tuple[Path, str]]

_NO_FRAME = "belongs to no frame that is converted"


def find_left_out(
    found: Recordings,
    used: Sequence[Path],
    roles: Sequence[str],
    folders: Mapping[str, str],
    exclusion: Exclusion,
) -> Reasons:
    """List what belongs to no frame, without what is excluded by name or has a problem.

    A folder without any file of a frame is listed as a whole. Hidden names are skipped. Links to folders are
    not followed: their targets are listed where they lie.

    `used` are the files of all frames, `roles` those that are converted, `folders` the folder name of each
    role. What `exclusion` covers is reported elsewhere. In natural order.
    """
    reported = Exclusion(name for each in found.problems for name in (each.source, each.location))
    walk = _LeftOutSearch(set(resolve_files(used)), roles, folders, found.base, (exclusion, reported))
    left = [each for root in sorted(found.searched) for each in walk.below(root)]
    left += [each for root in sorted(found.followed) for each in walk.below(root, followed=True)]
    return sorted(left, key=lambda each: natural_key(each[0].as_posix()))


@dataclass(slots=True)
class _LeftOutSearch:
    """Search of folders, each real folder once."""

    used: set[Path]
    roles: Sequence[str]
    folders: Mapping[str, str]
    base: Path
    reported: tuple[Exclusion, ...]
    seen: set[Path] = field(default_factory=set)
    followed: bool = False

    @property
    def role_of(self) -> dict[str, str]:
        """Role by folder name."""
        return {name: role for role, name in self.folders.items()}

    def below(self, root: Path, *, followed: bool = False) -> Reasons:
        """What is left under one of the given paths; `followed`: it is only a target of links."""
        self.followed = followed
        return self._inside(root)[0] if root.is_dir() and not self._is_reported(root) else []

    def _inside(self, folder: Path) -> tuple[Reasons, bool]:
        """What is left in a folder, and whether that is everything in it."""
        real = real_path(folder)
        if real in self.seen:
            return [], False
        self.seen.add(real)
        left: Reasons = []
        whole = True
        for path, is_folder, is_link in _entries(folder):
            if self._is_reported(path):
                whole = False
            elif not is_folder:
                if (real_path(path) if is_link else real / path.name) in self.used:
                    whole = False
                else:
                    left.append((path, self._reason(path)))
            elif is_link:
                whole = False
            elif is_store(path):
                left.append((path, "is a store"))
            else:
                inside, all_of_it = self._inside(path)
                left += [(path, self._folder_reason(path))] if all_of_it else inside
                whole = whole and all_of_it
        return left, whole

    def _is_reported(self, path: Path) -> bool:
        name = relative_name(path, self.base)
        return any(each.covers(name) for each in self.reported)

    def _folder_reason(self, folder: Path) -> str:
        if self.followed:
            return "no link leads into it"
        above, role = folder.parent, self.role_of.get(folder.name)
        if above.name in self.role_of:
            return f"lies in {printable(above.name)}/, where only files are looked at"
        if role is not None and self._spikes_in(above):
            return _NO_FRAME if role in self.roles else f"not every sequence has {printable(folder.name)}/"
        if role is None and any((above / name).is_dir() for name in self.role_of):
            return f"is none of {', '.join(f'{name}/' for name in self.role_of)}"
        spikes = " or ".join(f"{self.folders[each]}/" for each in ("spike", "voxel"))
        return f"no {spikes} beside it" if role is not None else "holds no spikes"

    def _reason(self, path: Path) -> str:
        above = path.parent
        role = self.role_of.get(above.name)
        if not (has_known_suffix(path) if role is None else has_role_suffix(path, role)):
            return f"is no {', '.join(suffixes_of(role or 'spike'))} file"
        if self.followed:
            return "no link leads to it"
        if role is not None and role not in self.roles:
            return f"not every sequence has {printable(above.name)}/"
        if role is None and any(has_role_suffix(path, each) for each in IMAGE_ROLES):
            return f"lies in no {' or '.join(f'{self.folders[each]}/' for each in IMAGE_ROLES)} folder"
        if role is None and self._spikes_in(above):
            return f"lies beside {self.folders['spike']}/, not in it"
        return _NO_FRAME

    def _spikes_in(self, folder: Path) -> bool:
        return any((folder / self.folders[role]).is_dir() for role in ("spike", "voxel"))


def _entries(folder: Path) -> list[tuple[Path, bool, bool]]:
    """Path, whether it is a folder, and whether it is a link, of the visible entries in natural order."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (Path(entry.path), os.path.isdir(entry.path), entry.is_symlink())  # noqa: PTH112  as in paths
                for entry in entries
                if not entry.name.startswith(".")
            ]
    except OSError:
        return []
    return sorted(found, key=lambda each: natural_key(each[0].name))
