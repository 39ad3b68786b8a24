"""Search of one of the given paths; `unistore.converters.spike.recordings` puts all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion, with_source
from unistore.converters.files.paths import (
    Listing,
    is_special_file,
    is_store,
    natural_key,
    real_path,
    special_file_problem,
    split_of,
)
from unistore.converters.spike.frames import (
    ROLES,
    Frame,
    Recording,
    has_known_suffix,
    has_role_suffix,
    pair_files,
    split_at_gaps,
    suffixes_of,
)
from unistore.converters.spike.layouts import stem_of
from unistore.errors import Problem, printable


def relative_name(path: Path, base: Path) -> str:
    """Printable path relative to a folder; for the folder itself, its name."""
    relative = path.relative_to(base).as_posix()
    return printable(base.name if relative == "." else relative)


class Search:
    """Search of one root for recordings."""

    def __init__(
        self,
        number: int,
        roots: Sequence[Path],
        base: Path,
        folders: Mapping[str, str],
        exclusion: Exclusion,
        listing: Listing,
    ) -> None:
        self.number = number
        self.recordings: list[Recording] = []
        self.problems: list[Problem] = []
        self.without_spikes: list[tuple[Problem, set[Path]]] = []
        """Folders with images only, and their real folders: no problem if another recording uses these."""
        self.targets: set[int] = set()
        """Numbers of the other roots that links lead into."""
        self.leaving: list[Path] = []
        """Links out of all roots."""
        self._root = roots[number]
        self._base = base
        self._folders = folders
        self._exclusion = exclusion
        self._listing = listing
        self._real_roots = [real_path(root) for root in roots]

    def run(self) -> None:
        """Search everything below the root."""
        if self._exclusion.covers(self._name(self._root)):
            return
        if self._root.is_dir():
            self._search_folder(self._root, (real_path(self._root),))
        elif is_special_file(self._root):
            self.problems.append(special_file_problem(printable(str(self._root))))
        elif self._root.exists():
            self._add_single_file(self._root)
        else:
            cure = "the link's target is gone" if self._root.is_symlink() else "check the path"
            self.problems.append(Problem(printable(str(self._root)), "does not exist", cure, "missing"))

    def _search_folder(self, folder: Path, above: tuple[Path, ...]) -> None:
        entries = self._entries(folder)
        inside = {path.name: path for path in entries if path.is_dir()}
        roles = {role: inside[name] for role, name in self._folders.items() if name in inside}
        if roles:
            self._add_recording(folder, roles)
        else:
            self._add_loose_files(folder, [path for path in entries if has_role_suffix(path, "spike")])
        for path in inside.values():
            real = real_path(path)
            if path not in roles.values() and real not in above and not is_store(path):
                self._search_folder(path, (*above, real))

    def _entries(self, folder: Path) -> list[Path]:
        """Usable paths in a folder in natural order: not hidden, excluded, special, or outside links."""
        try:
            paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            self._problem(folder, f"cannot be listed: {error.strerror}", "check the rights", "unreadable")
            return []
        paths.sort(key=lambda path: natural_key(path.name))
        if self._exclusion:
            paths = [path for path in paths if not self._exclusion.covers(self._name(path))]
        paths = [path for path in paths if not self._listing.is_left(path)]
        return [
            path
            for path in paths
            if (not path.is_symlink() or self._may_follow(path)) and not self._is_special(path)
        ]

    def _is_special(self, path: Path) -> bool:
        found = has_known_suffix(path) and is_special_file(path)
        if found:
            self.problems += with_source(self._name(path), [special_file_problem(self._name(path))])
        return found

    def _may_follow(self, link: Path) -> bool:
        wanted = has_known_suffix(link)
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

    def _add_recording(self, folder: Path, roles: Mapping[str, Path]) -> None:
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
        locations = {role: self._name(path) for role, path in roles.items()}
        excluded = {
            stem
            for role in files
            for stem in self._excluded_stems(roles[role], role)
            if stem not in files[role]
        }
        runs, problems = pair_files(files, locations, self._name, excluded)
        self.problems += with_source(self._name(folder), problems)
        self._add_runs(folder, runs, tuple(files))

    def _add_runs(self, folder: Path, runs: Sequence[tuple[Frame, ...]], roles: tuple[str, ...]) -> None:
        name, split = self._name(folder), self._split(folder)
        self.recordings += [Recording(name, split, run, roles, part) for part, run in enumerate(runs, 1)]

    def _excluded_stems(self, folder: Path, role: str) -> list[str]:
        if not self._exclusion:
            return []
        paths = [path for path in folder.iterdir() if has_role_suffix(path, role)]
        return [stem_of(path) for path in paths if self._exclusion.covers(self._name(path))]

    def _files(self, folder: Path, role: str) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for path in self._entries(folder):
            if not has_role_suffix(path, role) or path.is_dir():
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

    def _add_loose_files(self, folder: Path, files: Sequence[Path]) -> None:
        """Numbered spike files are consecutive frames of one recording, others a recording each."""
        numbered = [path for path in files if stem_of(path).isdigit()]
        if len(numbered) > 1:
            excluded = {stem for stem in self._excluded_stems(folder, "spike") if stem.isdigit()}
            frames = {stem_of(path): Frame(self._name(path), {"spike": path}) for path in numbered}
            self._add_runs(folder, split_at_gaps(frames, excluded), ("spike",))
            files = [path for path in files if path not in numbered]
        for path in files:
            self._add_single_file(path)

    def _add_single_file(self, path: Path) -> None:
        name = self._name(path)
        frames = (Frame(name, {"spike": path}),)
        self.recordings.append(Recording(name, self._split(path.parent), frames, ("spike",)))

    def _split(self, folder: Path) -> str | None:
        """Split named by the folders from the root on."""
        top = self._root.parent if self._root.is_dir() else self._root.parent.parent
        return split_of(f"{folder.relative_to(top).as_posix()}/")

    def _name(self, path: Path) -> str:
        return relative_name(path, self._base)

    def _problem(self, path: Path, message: str, cure: str, kind: str) -> None:
        self.problems.append(Problem(self._name(path), message, cure, kind, self._name(path)))
