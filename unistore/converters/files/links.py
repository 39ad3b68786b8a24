"""List files by the names that links to folders give them, for families whose folders are made of links."""

# Links are followed where they stay inside the given paths. A given path that links of another one lead into
# is not searched itself.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import (
    Listing,
    folders_of_targets,
    is_special_file,
    is_store,
    missing_problem,
    natural_key,
    real_path,
    resolve_parents,
    special_file_problem,
)
from unistore.errors import AddOptions, Fixes, Problem, printable, with_source


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFiles:
    """Files with any ending below the given paths, with links to folders followed.

    Attributes
    ----------
    names : mapping of Path to str
        Name of each path, relative to the folder of all given paths.
    problems : sequence of Problem
        Problems of links and folders.
    notes : sequence of str
        Notes for the user.
    followed : sequence of Path
        Given paths that are used only as targets of links.
    """

    names: Mapping[Path, str] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    followed: Sequence[Path] = ()


def follow_links(listing: Listing, endings: Sequence[str], is_excluded: Callable[[str], bool]) -> LinkedFiles:
    """List the files below the paths of a listing again, with links to folders followed.

    Files that are left to other families are not among them. Files with one of the endings must be real
    files: pipes and broken links are problems.
    """
    roots = list(dict.fromkeys(Path(os.path.abspath(path)) for path in listing.roots))  # noqa: PTH100  keeps links
    base = _common_base(roots)
    walks = [_Walk(root, roots, base, listing, endings, is_excluded) for root in roots]
    for walk in walks:
        walk.run()
    targets = set(chain.from_iterable(walk.targets for walk in walks))
    searched = [walk for walk in walks if walk.root not in targets]
    fix = _fix_of(list(chain.from_iterable(walk.leaving for walk in searched)), roots)
    problems: dict[Problem, None] = {}
    names: dict[Path, str] = {}
    for walk in searched:
        names |= walk.names
        for problem in walk.problems:
            with_fix = replace(problem, fix=fix) if problem.kind == "link" else problem
            problems[with_fix] = None
    followed = [root for root in roots if root in targets]
    return LinkedFiles(
        names=names,
        problems=list(problems),
        notes=[f"{printable(str(root))}: only followed from links, not searched" for root in followed],
        followed=followed,
    )


def _common_base(roots: Sequence[Path]) -> Path:
    if len(roots) == 1 and roots[0].is_dir():
        return roots[0]
    return Path(os.path.commonpath([root if root.is_dir() else root.parent for root in roots]))


def _fix_of(links: Sequence[Path], roots: Sequence[Path]) -> AddOptions:
    words: list[str] = []
    for target in folders_of_targets(links, roots):
        words += ["--follow-links-to", str(target)]
    return AddOptions(tuple(words))


@dataclass
class _Walk:
    """Search of one given path."""

    root: Path
    roots: Sequence[Path]
    base: Path
    listing: Listing
    endings: Sequence[str]
    is_excluded: Callable[[str], bool]
    names: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    targets: set[Path] = field(default_factory=set)  # other given paths that links lead into
    leaving: list[Path] = field(default_factory=list)  # links out of all given paths

    def run(self) -> None:
        if self.is_excluded(self._name(self.root)):
            return
        if self.root.is_dir():
            self._search(self.root, (real_path(self.root),))
        elif is_special_file(self.root):
            self.problems.append(special_file_problem(printable(str(self.root))))
        elif self.root.exists():
            self.names[self.root] = self._name(self.root)
        else:
            self.problems.append(missing_problem(self.root))

    def _search(self, folder: Path, above: tuple[Path, ...]) -> None:
        try:
            paths = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
        except OSError as error:
            fix = "check the permissions of the folder"
            self._problem(folder, f"cannot be listed: {error.strerror}", fix, "unreadable")
            return
        for path in paths:
            if path.name.startswith(".") or self.is_excluded(self._name(path)):
                continue
            if self.listing.is_left(path) or (path.is_symlink() and not self._may_follow(path)):
                continue
            if not path.is_dir():
                self._add_file(path)
                continue
            real = real_path(path)
            if real not in above and not is_store(path):
                self._search(path, (*above, real))

    def _add_file(self, path: Path) -> None:
        name = self._name(path)
        if not is_special_file(path):
            self.names[path] = name
        elif has_ending(path, self.endings):
            self.problems += with_source(name, [special_file_problem(name)])

    def _may_follow(self, link: Path) -> bool:
        is_wanted = has_ending(link, self.endings)
        if not link.exists():
            if is_wanted:
                self._problem(link, broken_link(link), "correct or remove the link", "missing")
            return not is_wanted
        if not is_wanted and not link.is_dir():
            return False
        real = real_path(link)
        holding = {root for root in self.roots if real.is_relative_to(real_path(root))}
        if not holding:
            message = f"is a link to {printable(str(real))}, which is outside the given paths"
            self._problem(link, message, "", "link")
            self.leaving.append(link)
        elif self.root not in holding:
            self.targets |= holding
        return bool(holding)

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self.base).as_posix()
        return printable(self.base.name if relative == "." else relative)

    def _problem(self, path: Path, message: str, fix: Fixes, kind: str) -> None:
        name = self._name(path)
        self.problems.append(Problem(name, message, fix, kind, name))


def real_files(files: Iterable[Path]) -> list[Path]:
    """Return files with every link resolved.

    Each folder is resolved once, because there may be millions of files.
    """
    paths = list(files)
    in_place = zip(paths, resolve_parents(paths), strict=True)
    return [real_path(path) if path.is_symlink() else real for path, real in in_place]


def broken_link(link: Path) -> str:
    """Return the text of a problem: the target of this link does not exist."""
    return f"is a link to {printable(str(link.readlink()))}, which does not exist"
