"""Pages of the site that lie elsewhere: README, what stands beside it, and the reference of public names."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
MOVED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
    "benchmarks/ARCHIVE.md": "archive.md",
    "examples/readers/unistore.mjs": "examples/unistore.mjs",
    "examples/notebooks/look_at_a_store.ipynb": "notebooks/look_at_a_store.ipynb",
    "examples/notebooks/train_from_a_store.ipynb": "notebooks/train_from_a_store.ipynb",
}
# Public names by what people do; those that are in no list stand last.
TASKS = {
    "Convert": "convert Report",
    "Look": "inspect Inspection view doctor DoctorReport",
    "Read": "Dataset Store open_zarr",
    "Samples": "Rows Ragged Segments Volumes Patches SparsePoints Clips Steps Events "
    "Transitions Windows Episodes",
    "Load": "Loader collate Collate Shuffle EpochIndex replay Replayed",
    "Train": "ReplayBuffer Normalize Statistics keep_statistics stitch",
    "Grow": "append Appended remove Removed versions VersionSummary compact attach derive",
    "Check and give back": "verify Verified Receipt repair Repaired export Exported",
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    import unistore
    from unistore.system.lazy import names_of_stub

    for source, page in MOVED.items():
        text = moved_links((ROOT / source).read_text(), ROOT / source, ROOT / "docs" / page)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "api.md", content=reference(names_of_stub(unistore.__file__))))
    return files


def reference(homes: Mapping[str, str]) -> str:
    """Return the page of public names by task, under the names that are imported."""
    listed = {task: [name for name in names.split() if name in homes] for task, names in TASKS.items()}
    in_tasks = set().union(*listed.values())
    listed["Errors"] = [name for name in sorted(homes) if homes[name] == "unistore.errors"]
    in_tasks.update(listed["Errors"])
    listed["More"] = [name for name in sorted(homes) if name not in in_tasks]
    lines = ["# Python reference", ""]
    for task, names in listed.items():
        lines += [f"## {task}", ""]
        for name in names:
            heading = f"unistore.{name}"
            lines += [f"::: {homes[name]}.{name}", "    options:"]
            lines += [f"      heading: {heading}", f"      toc_label: {heading}", ""]
    return "\n".join(lines)


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
