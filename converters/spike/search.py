"""Search through one of the given paths: recordings, what is wrong, and links that lead into the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion, about
from unistore.converters.files.paths import is_special, is_store, natural_key, real_path, special, split_of
from unistore.converters.spike.frames import (
    ROLES,
    Frame,
    Recording,
    is_known,
    is_of,
    pair,
    runs_of,
    suffixes_of,
)
from unistore.converters.spike.layouts import stem_of
from unistore.errors import Problem, printable

__all__ = ["Search", "relative_name"]


def relative_name(path: Path, base: Path) -> str:
    """Printable name of a path below a folder; the folder's own name for the folder itself."""
    relative = path.relative_to(base).as_posix()
    return printable(base.name if relative == "." else relative)


class Search:
    """Search through one root: collects recordings, problems, and the other roots that links lead into."""

    def __init__(
        self,
        number: int,
        roots: Sequence[Path],
        base: Path,
        folders: Mapping[str, str],
        exclusion: Exclusion,
    ) -> None:
        self.number = number
        self.recordings: list[Recording] = []
        self.problems: list[Problem] = []
        self.without_spikes: list[tuple[Problem, set[Path]]] = []
        self.targets: set[int] = set()
        self.leaving: list[Path] = []
        self._root = roots[number]
        self._base = base
        self._folders = folders
        self._exclusion = exclusion
        self._real_roots = [real_path(root) for root in roots]

    def run(self) -> None:
        """Look at everything below the root."""
        if self._exclusion.covers(self._name(self._root)):
            return
        if self._root.is_dir():
            self._folder(self._root, (real_path(self._root),))
        elif is_special(self._root):
            self.problems.append(special(printable(str(self._root))))
        elif self._root.exists():
            self._single(self._root)
        else:
            cure = "the link's target is gone" if self._root.is_symlink() else "check the path"
            self.problems.append(Problem(printable(str(self._root)), "does not exist", cure, "missing"))

    def _folder(self, folder: Path, above: tuple[Path, ...]) -> None:
        entries = self._entries(folder)
        inside = {path.name: path for path in entries if path.is_dir()}
        roles = {role: inside[name] for role, name in self._folders.items() if name in inside}
        if roles:
            self._recording(folder, roles)
        else:
            self._loose(folder, [path for path in entries if is_of(path, "spike")])
        for path in inside.values():
            real = real_path(path)
            if path not in roles.values() and real not in above and not is_store(path):
                self._folder(path, (*above, real))

    def _entries(self, folder: Path) -> list[Path]:
        """What stands in a folder, in natural order: no hidden names, no link that leads outside."""
        try:
            paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            self._problem(folder, f"cannot be listed: {error.strerror}", "check the rights", "unreadable")
            return []
        paths.sort(key=lambda path: natural_key(path.name))
        if self._exclusion:
            paths = [path for path in paths if not self._exclusion.covers(self._name(path))]
        paths = [path for path in paths if not self._exclusion.is_apart(path)]
        return [
            path
            for path in paths
            if (not path.is_symlink() or self._may_follow(path)) and not self._is_special(path)
        ]

    def _is_special(self, path: Path) -> bool:
        found = is_known(path) and is_special(path)
        if found:
            self.problems += about(self._name(path), [special(self._name(path))])
        return found

    def _may_follow(self, link: Path) -> bool:
        wanted = is_known(link)
        if not link.exists():
            if wanted or link.name in self._folders.values():
                target = printable(str(link.readlink()))
                self._problem(link, f"is a link to {target}, which is not there", "fix the link", "missing")
            return False
        if not wanted and not link.is_dir():
            return False
        real = real_path(link)
        holding = {number for number, root in enumerate(self._real_roots) if real.is_relative_to(root)}
        if not holding:
            message = f"is a link to {printable(str(real))}, outside the given paths"
            self._problem(link, message, "", "link")
            self.leaving.append(link)
        elif self.number not in holding:
            self.targets |= holding
        return bool(holding)

    def _recording(self, folder: Path, roles: Mapping[str, Path]) -> None:
        """A folder with folders of spikes, voxels or images in it."""
        if not {"spike", "voxel"} & set(roles):
            missing = f"neither {self._folders['spike']}/ nor {self._folders['voxel']}/"
            present = " and ".join(f"{self._folders[role]}/" for role in roles)
            message = f"has {present}, but {missing}"
            cure = "name the folder with --spike-dir"
            problem = Problem(self._name(folder), message, cure, "missing", self._name(folder))
            self.without_spikes.append((problem, {real_path(path) for path in roles.values()}))
            return
        files = {role: self._files(roles[role], role) for role in ROLES if role in roles}
        if not all(files.values()):
            return
        places = {role: self._name(path) for role, path in roles.items()}
        gone = {stem for role in files for stem in self._gone(roles[role], role) if stem not in files[role]}
        runs, problems = pair(files, places, self._name, gone)
        self.problems += about(self._name(folder), problems)
        self._add(folder, runs, tuple(files))

    def _add(self, folder: Path, runs: Sequence[tuple[Frame, ...]], roles: tuple[str, ...]) -> None:
        """A recording, and what goes on behind each of its gaps."""
        name, split = self._name(folder), self._split(folder)
        self.recordings += [Recording(name, split, run, roles, part) for part, run in enumerate(runs, 1)]

    def _gone(self, folder: Path, role: str) -> list[str]:
        """Stems of a role's files that are left out."""
        if not self._exclusion:
            return []
        paths = [path for path in folder.iterdir() if is_of(path, role)]
        return [stem_of(path) for path in paths if self._exclusion.covers(self._name(path))]

    def _files(self, folder: Path, role: str) -> dict[str, Path]:
        """Files of one role by stem."""
        files: dict[str, Path] = {}
        for path in self._entries(folder):
            if not is_of(path, role) or path.is_dir():
                continue
            stem = stem_of(path)
            if stem in files:
                message = f"and {printable(files[stem].name)} are both frame {printable(stem)}"
                self._problem(path, message, "remove one of them", "count")
            files[stem] = path
        if not files:
            message = f"holds no {' or '.join(suffixes_of(role))} file"
            above = self._name(folder.parent)
            self.problems.append(Problem(self._name(folder), message, kind="missing", source=above))
        return files

    def _loose(self, folder: Path, files: Sequence[Path]) -> None:
        """Spike files beside each other: numbered ones are consecutive frames, others stand alone."""
        numbered = [path for path in files if stem_of(path).isdigit()]
        if len(numbered) > 1:
            gone = {stem for stem in self._gone(folder, "spike") if stem.isdigit()}
            frames = {stem_of(path): Frame(self._name(path), {"spike": path}) for path in numbered}
            self._add(folder, runs_of(frames, gone), ("spike",))
            files = [path for path in files if path not in numbered]
        for path in files:
            self._single(path)

    def _single(self, path: Path) -> None:
        name = self._name(path)
        frames = (Frame(name, {"spike": path}),)
        self.recordings.append(Recording(name, self._split(path.parent), frames, ("spike",)))

    def _split(self, folder: Path) -> str | None:
        """Split told by a folder's name below the root, or by the root's own."""
        top = self._root.parent if self._root.is_dir() else self._root.parent.parent
        return split_of(f"{folder.relative_to(top).as_posix()}/")

    def _name(self, path: Path) -> str:
        return relative_name(path, self._base)

    def _problem(self, path: Path, message: str, cure: str, kind: str) -> None:
        self.problems.append(Problem(self._name(path), message, cure, kind, self._name(path)))
