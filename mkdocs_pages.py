"""Pages of the site that lie elsewhere: README, what stands beside it, and the reference of public names."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
    "examples/notebooks/look_at_a_store.ipynb": "notebooks/look_at_a_store.ipynb",
    "examples/notebooks/train_from_a_store.ipynb": "notebooks/train_from_a_store.ipynb",
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    import unistore

    for source, page in MOVED.items():
        text = moved_links((ROOT / source).read_text(), ROOT / source, ROOT / "docs" / page)
        files.append(File.generated(config, page, content=text))
    names = sorted((name, home) for name, home in unistore._HOME.items() if name[0].isalpha())
    listed = "\n".join(f"::: unistore.{home}.{name}\n" for name, home in names)
    files.append(File.generated(config, "api.md", content=f"# Python reference\n\n{listed}"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of guides to files that the site has elsewhere."""
    source = ROOT / "docs" / page.file.src_uri
    return moved_links(markdown, source, source)


def moved_links(text: str, source: Path, page: Path) -> str:
    """Text with the links that it has at `source` made those that it needs at `page`."""

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if not target.is_relative_to(ROOT):
            return match[0]
        name = target.relative_to(ROOT).as_posix()
        at = ROOT / "docs" / MOVED[name] if name in MOVED else target
        return f"]({os.path.relpath(at, page.parent)}" if at.exists() or name in MOVED else match[0]

    return LINK.sub(link, text)
