"""Steps of a release that `.github/workflows/release.yml` runs.

python tools/release.py check v0.1.0       the tag, all stated versions and the changelog agree
python tools/release.py links URL v0.1.0   write absolute links into README.md, and URL into pyproject.toml
python tools/release.py notes v0.1.0       print the section of the changelog
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?!https?://|#)([^)\s]+)\)")
PICTURES = (".png", ".svg", ".webp")


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the section of the changelog for a tag.

    Raises
    ------
    SystemExit
        The changelog has no such section, or it is still marked as unreleased.
    """
    version = tag.removeprefix("v")
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(
        rf"^## {re.escape(version)} \(([^)]+)\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        sys.exit(
            f"CHANGELOG.md has no section '## {version} (DATE)': run towncrier build --version {version}"
        )
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        sys.exit(f"CHANGELOG.md: section {version} has '{found[1]}' in place of a date")
    return found[2].strip() + "\n"


def stated_versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file of the project states, by file."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    versions = {"pyproject.toml": project["version"]}
    for name, pattern in (
        ("CITATION.cff", r"^version: (\S+)$"),
        ("tools/conda/recipe.yaml", r'^  version: "(\S+)"$'),
    ):
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        versions[name] = found[1] if found else "none"
    return versions


def check(tag: str, root: Path = ROOT) -> None:
    """End with an error unless tag, stated versions and changelog agree, and no fragment is left."""
    version = tag.removeprefix("v")
    wrong = [
        f"{file} has version {stated}" for file, stated in stated_versions(root).items() if stated != version
    ]
    left = sorted(path.name for path in (root / "changes").glob("*.md") if path.name != "README.md")
    if left:
        wrong.append(f"changes/ still has {', '.join(left)}")
    if wrong:
        sys.exit(f"the tag is {tag}, but " + "; ".join(wrong))
    notes(tag, root)


def absolute(text: str, url: str, ref: str) -> str:
    """Return Markdown whose relative links lead to files of a repository on GitHub, at a tag or commit."""

    def link(found: re.Match[str]) -> str:
        mark, label, path = found.groups()
        if path.startswith("../../"):  # pages of the repository itself, such as its runs
            return f"{mark}[{LINK.sub(link, label)}]({url}/{path.removeprefix('../../')})"
        kind = "raw" if path.lower().endswith(PICTURES) else "blob"
        return f"{mark}[{LINK.sub(link, label)}]({url}/{kind}/{ref}/{path})"

    return LINK.sub(link, text)


def links(url: str, ref: str, root: Path = ROOT) -> None:
    """Write absolute links into README.md, and the addresses of the project into pyproject.toml."""
    readme, project = root / "README.md", root / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), url, ref))
    urls = {
        "Repository": url,
        "Documentation": f"{url}/blob/{ref}/docs/index.md",
        "Changelog": f"{url}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    table = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    text = project.read_text()
    if "[project.urls]" in text:
        sys.exit("pyproject.toml has a table [project.urls] already")
    project.write_text(text.replace("[project.scripts]", f"[project.urls]\n{table}\n[project.scripts]", 1))


def main(arguments: list[str]) -> None:
    """Run one step."""
    match arguments:
        case ["check", tag]:
            check(tag)
        case ["links", url, ref]:
            links(url.rstrip("/"), ref)
        case ["notes", tag]:
            sys.stdout.write(notes(tag))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
