"""Other readers on the golden stores and an OME-NGFF export: ome-zarr-models, zarrita.js, napari-ome-zarr.

    python benchmarks/other_readers.py [--tools FOLDER]

Needs node and npm. ``--tools`` keeps the environment of napari and the npm packages for the next run. Values
are compared by SHA-256 with those that zarr-python reads. napari has no window here: what is called is the
function that its plugin gives it for a path, which returns the layers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import unistore

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "golden"
ZARRITA = """
import { createHash } from "node:crypto";
import * as zarr from "zarrita";
import FileSystemStore from "@zarrita/storage/fs";
const found = {};
const [root, ...paths] = process.argv.slice(2);
for (const path of paths) {
  const node = zarr.root(new FileSystemStore(root)).resolve(path);
  const { data } = await zarr.get(await zarr.open.v3(node, { kind: "array" }));
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  found[path] = createHash("sha256").update(bytes).digest("hex");
}
console.log(JSON.stringify(found));
"""
NAPARI = """
import hashlib, json, sys
import numpy as np
from napari_ome_zarr._reader import napari_get_reader
found = {}
for data, about, kind in napari_get_reader(sys.argv[1])(sys.argv[1]):
    level = data[0] if isinstance(data, list) else data
    values = np.ascontiguousarray(level)
    name = "0" if kind == "image" else f"labels/{about['name'].rpartition('/')[2]}/0"
    found[name] = hashlib.sha256(values).hexdigest()
print(json.dumps(found))
"""
VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def main() -> None:
    """Print a line a store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        tools = (parser.parse_args().tools or Path(folder) / "tools").resolve()
        python = napari_python(tools)
        node = zarrita_program(tools)
        versions = {name: text(python, "-Ic", VERSION, name) for name in ("napari-ome-zarr", "napari")}
        versions |= {"ome-zarr-models": version("ome-zarr-models"), "zarrita": package(tools, "zarrita")}
        versions["node"] = text("node", "--version").removeprefix("v")
        print(", ".join(f"{name} {found}" for name, found in versions.items()), "\n")
        print("| store | arrays | ome-zarr-models | zarrita.js | napari-ome-zarr |\n|---|--:|---|---|---|")
        for store, is_image in stores(Path(folder)):
            expected = digests(store)
            cells = [
                outcome(valid, store) if is_image else "–",
                outcome(compare, expected, "node", node, store, *expected),
                outcome(compare, expected, python, "-Ic", NAPARI, store) if is_image else "–",
            ]
            print(f"| {' | '.join([store.name, str(len(expected)), *cells])} |")


def stores(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Golden stores, and the images that the one of volumes is exported as."""
    for store in sorted(GOLDEN.iterdir()):
        yield store, False
    unistore.export(GOLDEN / "ct.zarr", folder / "images", to="ome-zarr")
    for image in sorted((folder / "images").iterdir()):
        yield image, True


def digests(store: Path) -> dict[str, str]:
    """SHA-256 of the values of every array, as zarr-python reads them."""
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    return {
        path: hashlib.sha256(np.ascontiguousarray(member[...])).hexdigest()
        for path, member in members
        if isinstance(member, zarr.Array)
    }


def valid(store: Path) -> str:
    """What ome-zarr-models makes of an image; it raises what is wrong."""
    from ome_zarr_models.v05 import Image

    image = Image.from_zarr(zarr.open_group(store, mode="r"))
    labels = image.labels.attributes.ome.labels if image.labels else []
    return f"valid 0.5, {len(labels)} labels"


def compare(expected: dict[str, str], *command: str | Path) -> str:
    """How many arrays have the expected values in the last line that a reader prints."""
    found: dict[str, Any] = json.loads(text(*command).splitlines()[-1])
    equal = sum(found.get(path) == digest for path, digest in expected.items())
    return "all equal" if equal == len(expected) else f"{equal} of {len(expected)} equal"


def outcome(check: Callable[..., str], *arguments: Any) -> str:
    """What a check says, or the last line of its error."""
    try:
        return check(*arguments)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.strip().splitlines() if "Error" in line]
        return f"fails: {(said or ['?'])[-1].strip()}"
    except Exception as error:
        return f"fails: {type(error).__name__}: {str(error).splitlines()[0]}"


def text(*command: str | Path) -> str:
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def package(tools: Path, name: str) -> str:
    """Version of an npm package."""
    return str(json.loads((tools / "node_modules" / name / "package.json").read_text())["version"])


def napari_python(tools: Path) -> Path:
    """Interpreter of an environment of its own with napari-ome-zarr, without Qt."""
    python = tools / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", tools / "venv"], check=True)
        subprocess.run([python, "-Im", "pip", "install", "-q", "napari-ome-zarr"], check=True)
    return python


def zarrita_program(tools: Path) -> Path:
    """The program above, beside the npm packages that it imports."""
    if not (tools / "node_modules" / "zarrita").exists():
        packages = ("zarrita", "@zarrita/storage")
        subprocess.run(["npm", "install", "--silent", "--prefix", tools, *packages], check=True)
    program = tools / "read.mjs"
    program.write_text(ZARRITA)
    return program


if __name__ == "__main__":
    main()
