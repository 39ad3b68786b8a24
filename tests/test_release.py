"""Files of a release agree: versions, changelog, fragments, links of the package's page."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tools import release

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the files that a release looks at, dated, without fragments."""
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "CHANGELOG.md", "tools/conda/recipe.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("(unreleased)", "(2026-12-01)"))
    (tmp_path / "changes").mkdir()
    return tmp_path


def test_all_files_state_one_version() -> None:
    stated = release.stated_versions()
    assert len(set(stated.values())) == 1, stated


def test_a_release_needs_its_own_version_and_no_open_fragments(project: Path) -> None:
    version = release.stated_versions(project)["pyproject.toml"]
    release.check(f"v{version}", project)
    assert release.notes(f"v{version}", project).startswith("The first release.")
    with pytest.raises(SystemExit, match="has version"):
        release.check("v9.9.9", project)
    (project / "changes" / "ply.added.md").write_text("Binary PLY files are read.")
    with pytest.raises(SystemExit, match=r"ply\.added\.md"):
        release.check(f"v{version}", project)


def test_a_section_without_a_date_is_not_released(project: Path) -> None:
    changelog = project / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("(2026-12-01)", "(unreleased)"))
    with pytest.raises(SystemExit, match="in place of a date"):
        release.check("v" + release.stated_versions(project)["pyproject.toml"], project)


def test_links_of_the_package_page_are_absolute(project: Path) -> None:
    release.links("https://forge.example/o/unistore", "v0.1.0", project)
    text = (project / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "](https://forge.example/o/unistore/blob/v0.1.0/docs/loading.md#open-source-files)" in text
    assert "](https://forge.example/o/unistore/raw/v0.1.0/docs/images/speed.svg)" in text
    urls = tomllib.loads((project / "pyproject.toml").read_text())["project"]["urls"]
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    with pytest.raises(SystemExit, match=r"project\.urls"):
        release.links("https://forge.example/o/unistore", "v0.1.0", project)


def test_a_picture_that_is_a_link_has_both_addresses() -> None:
    made = release.absolute("[![ci](a/badge.svg)](a/runs) [x](https://y) [z](#z)", "https://h/o", "v1")
    assert (
        made == "[![ci](https://h/o/raw/v1/a/badge.svg)](https://h/o/blob/v1/a/runs) [x](https://y) [z](#z)"
    )


def test_changelog_is_short_and_fragments_are_named() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60
    types = {
        one["directory"]
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    }
    named = re.compile(rf"[\w-]+\.({'|'.join(sorted(types))})\.md")
    wrong = [
        path.name
        for path in (ROOT / "changes").iterdir()
        if path.name != "README.md" and not named.fullmatch(path.name)
    ]
    assert wrong == []
