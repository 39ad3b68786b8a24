"""The guides: every block of Python runs, and every command, on the files and stores that they name."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from textwrap import indent
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

import unistore
from tests.support.programs import loaded, printed
from unistore.cli.main import main
from unistore.data.kinds.protocol import SampleKind

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(\w*)$")


def blocks(document: Path, language: str) -> str:
    """All blocks of a language as one text whose lines have the numbers that they have in the document."""
    inside, lines = None, []
    for line in document.read_text().splitlines():
        fence = BLOCK.match(line)
        if fence:
            inside = fence[1] if inside is None else None
        lines.append(line if inside == language and not fence else "")
    return "\n".join(lines)


def run(places: Mapping[str, Path]) -> None:
    """Run the Python of documents, each in its folder; a traceback has the document's line numbers.

    One process runs them all: importing torch takes longer than most of them.
    """
    script = ["import os"]
    for name, folder in places.items():
        code = blocks(ROOT / name, "python")
        assert code.strip()
        script += [f"os.chdir({str(folder)!r})", "names = {'__name__': '__main__'}"]
        script += [f"exec(compile({PREAMBLES.get(name, '')!r}, 'preamble', 'exec'), names)"]
        script += [f"exec(compile({code!r}, {name!r}, 'exec'), names)"]
    printed(
        "-W",
        "error",
        "-c",
        "\n".join(script),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples" / "migrate")]),
            "UNISTORE_CACHE": str(next(iter(places.values())) / "cache"),
        },
    )


PREAMBLES = {
    "docs/reference/loader.md": "import unistore\ndataset = unistore.Dataset('arrays.zarr')",
    # torchdata 0.11 tells torch that it is used, which torch 2.13 no longer wants to hear
    "docs/training.md": "import warnings\nwarnings.filterwarnings('ignore', \"'set_vital' is deprecated\")",
}
"""What a guide leaves to its reader."""


RUN = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "dataloader",
            "loader",
            "loading",
            "migrate",
            "normalize",
            "random-numbers",
            "reference/loader",
            "replay-buffer",
            "sensor-rates",
            "several-stores",
            "side-tables",
            "training",
            "verify-and-export",
        )
    ),
)


@pytest.mark.nightly
def test_a_store_is_read_without_unistore(demo_stores: Path) -> None:
    """The page's code gives the values of the sources."""
    code = blocks(ROOT / "docs" / "without-unistore.md", "python")
    assert "import unistore" not in code
    names: dict[str, Any] = {}
    with chdir(demo_stores):
        exec(compile(code, "without-unistore.md", "exec"), names)
        rows = names["clouds"]["points/source_row"][names["lo_3"] : names["hi_3"]]
    with h5py.File(demo_stores / "clouds" / "thin_a.h5") as file:
        xyz = np.stack([file[f"data/{axis}"][:] for axis in "xyz"], axis=1)
        assert np.array_equal(names["points"], xyz[rows])
        assert names["segments"][names["third"]].tolist() == file["data/intensity"][:][rows].tolist()
    image = np.load(demo_stores / "volumes" / "totalseg_b_hu.npy")
    assert np.array_equal(names["image"], image)
    assert np.array_equal(names["bone"], (image >= -450) & (image <= 1050))
    counts = unistore.Store(demo_stores / "recordings.zarr").array("frames/voxel/5").read()[2]
    assert np.array_equal(names["spikes"].sum(axis=0), counts.sum(axis=0))
    with h5py.File(demo_stores / "episodes" / "run.hdf5") as file:
        assert np.array_equal(names["actions"], file["actions"][:30])
    held_out = unistore.Dataset(demo_stores / "arrays.zarr", split="val")
    assert np.array_equal(names["validation"]["label"], [sample["label"] for sample in held_out])


def test_excerpts_of_trainers_are_in_their_scripts() -> None:
    """`make trainers` runs these scripts, in an environment of its own."""
    scripts = [path.read_text() for path in (ROOT / "examples" / "trainers").rglob("*.py")]
    excerpts = re.findall(
        r"^```py\n(.*?)^```$", (ROOT / "docs" / "training.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(excerpts) > 7
    for excerpt in excerpts:
        in_a_function = [indent(excerpt, 4 * depth * " ") for depth in range(3)]
        assert any(text in script for text in in_a_function for script in scripts), excerpt


FRAMEWORKS = {"rerun": "inspect"}
"""What is no dependency of the tests, and the guide that shows it in a block of ``py``."""


@pytest.mark.nightly
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_example_of_each_framework_runs(demo_stores: Path, tmp_path: Path, framework: str) -> None:
    guide = ROOT / "docs" / f"{FRAMEWORKS[framework]}.md"
    pytest.importorskip(
        framework, reason=f"{framework} is not installed: its example in {guide.name} is not run"
    )
    found = re.findall(r"^```py\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [code for code in found if code.startswith(f"import {framework}\n")]
    for name in ("arrays.zarr", "clouds.zarr"):
        shutil.copytree(demo_stores / name, tmp_path / name)
    (tmp_path / "example.py").write_text(code)
    printed(
        "-W",
        "ignore",
        "example.py",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )


FAMILIES = {"rows": 2, "point-cloud": 3, "ct": 2, "spike": 2, "events": 3, "trajectory": 3}
"""Pages of families, and how many commands each has at least."""
COMMANDS = {"converting": 5, "growing": 6, "inspect": 6} | {
    f"families/{name}": least for name, least in FAMILIES.items()
}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_commands_and_python_of_guides_run(
    demo_sources: Path,
    demo_stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = dict.fromkeys(RUN, demo_stores)
    for name, least in COMMANDS.items():
        document = f"docs/{name}.md"
        folder = places[document] = tmp_path / name
        shutil.copytree(demo_stores if name == "inspect" else demo_sources, folder)
        monkeypatch.chdir(folder)
        commands = [line for line in blocks(ROOT / document, "console").splitlines() if line]
        assert len(commands) >= least
        for line in commands:
            prompt, program, *arguments = shlex.split(line)
            assert (prompt, program) == ("$", "unistore")
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert ended.value.code == 0, (document, line, capfd.readouterr().err)
    run(places)


def test_readme_is_short_and_its_picture_light() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
    picture = (ROOT / "docs" / "images" / "overview.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as they are made on the web."""
    heads = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", [ROOT / "README.md", *GUIDES], ids=lambda p: p.name)
def test_links_of_guides_have_a_target(document: Path) -> None:
    wrong = []
    for path, anchor in LINK.findall(document.read_text()):
        if "://" in path or path.startswith("../../actions/"):  # runs, on the page of the repository
            continue
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(path + anchor)
    assert not wrong


def test_the_site_has_every_guide() -> None:
    def pages(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    moved = loaded(ROOT / "mkdocs_pages.py").MOVED.values()
    made = {"api.md", *(page for page in moved if page.endswith(".md"))}
    assert sorted(listed) == sorted(made | {path.relative_to(ROOT / "docs").as_posix() for path in GUIDES})


def test_links_are_rewritten_for_the_site() -> None:
    moved_links = loaded(ROOT / "mkdocs_pages.py").moved_links
    readme, index, design = ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "design.md"
    assert (
        moved_links("[a](docs/format.md#b) [c](https://d)", readme, index)
        == "[a](format.md#b) [c](https://d)"
    )
    assert moved_links("[a](../benchmarks/RESULTS.md) [b](#c)", design, design) == "[a](results.md) [b](#c)"


@pytest.mark.parametrize("page", ["reference/convert.md", "commands.md"])
def test_tables_of_options_and_commands_follow_from_the_code(page: str) -> None:
    """``python tools/write_reference.py`` after a change of an option or its help."""
    from tools.write_reference import DOCS, rendered

    assert (DOCS / page).read_text() == rendered(DOCS / page)


def test_every_sample_kind_has_its_arguments_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "samples.md").read_text()
    shown = dict(re.findall(r"^## (\w+)\n\n`\1(\(.*\))`$", text, re.MULTILINE))
    public = [getattr(unistore, name) for name in dir(unistore)]
    kinds = [kind for kind in public if isinstance(kind, type) and issubclass(kind, SampleKind)]
    assert len(kinds) > 10
    for kind in kinds:
        signature = inspect.signature(kind)
        plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        assert shown[kind.__name__] == str(inspect.Signature(plain))


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.stem)
def test_files_that_a_guide_names_are_there(document: Path) -> None:
    named = re.findall(
        r"`((?:tests|benchmarks|examples|unistore|converters|schemas)/[\w./-]+)`", document.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_promise_of_security_is_held_by_a_test_of_the_suite() -> None:
    promises = (ROOT / "docs" / "security.md").read_text().split("## What is promised")[1].split("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    tests = [re.findall(r"`(tests/[\w./-]*test_\w+\.py)`", row) for row in rows]
    assert len(rows) > 10
    assert [row for row, held_by in zip(rows, tests, strict=True) if not held_by] == []
