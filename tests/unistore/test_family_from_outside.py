"""A family in a package of its own: ``docs/write-a-family.md``, installed from wheels, far from the checkout.

The package is what stands in the page's blocks. It and unistore are built as wheels and installed into a
fresh environment, which finds the other dependencies where this one has them. Values are compared with what
the files were made of, by zarr-python and plain numpy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "write-a-family.md"
SAMPLES = 50
PINGS = {"train/a.bin": (96, 700), "train/b.bin": (192, 1), "train/c.bin": (96, 431), "val/d.bin": (200, 300)}
"""Sample rate and pings of each file."""
SMALL = "import unistore.conversion.layout; unistore.conversion.layout.SHARD = 32 << 10"
"""So that a conversion has many steps."""

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Installed:
    """The environment in which unistore and the family are installed, and a folder elsewhere to work in."""

    python: Path
    folder: Path
    pings: dict[str, NDArray[np.uint16]]

    def unistore(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.python.with_name("unistore")), *arguments], code)

    def script(self, text: str, *arguments: str) -> str:
        """What a program prints."""
        file = self.folder / "program.py"
        file.write_text(textwrap.dedent(text))
        forks = "ignore:This process"  # Python 3.12 warns of forks beside threads
        return self._run([str(self.python), "-W", "error", "-W", forks, str(file), *arguments], 0).stdout

    def _run(self, command: list[str], code: int) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
        done = subprocess.run(
            command, cwd=self.folder, env=kept, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done


def package() -> dict[str, str]:
    """Files of the page: a name in bold and code, and the block that follows."""
    return dict(
        re.findall(r"^\*\*`([\w./]+)`\*\*\n\n```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    )


def block(language: str) -> str:
    """The last block of a language, which uses the package."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[-1]


def wheel(folder: Path, destination: Path) -> Path:
    """Build a wheel as pip does without isolation: by the package's own build backend."""
    code = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    before = set(destination.glob("*.whl"))
    done = subprocess.run(
        [sys.executable, "-c", code, str(destination)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = set(destination.glob("*.whl")) - before
    return made


def write(path: Path, rate: int, echoes: NDArray[np.uint16]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b"PING" + struct.pack("<HHII", 1, rate, echoes.shape[1], len(echoes))
    path.write_bytes(header + echoes.astype("<u2").tobytes())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    for needed in ("setuptools", "pip"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(
                f"{needed} is not installed, and without it no wheel can be built or installed offline"
            )
    place = tmp_path_factory.mktemp("outside")
    source = place / "source"
    source.mkdir()
    for name in ("unistore", "converters", "schemas"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name, text in package().items():
        (place / "sonar" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "sonar" / name).write_text(text)
    (place / "wheels").mkdir()
    wheels = [wheel(folder, place / "wheels") for folder in (source, place / "sonar")]
    with zipfile.ZipFile(wheels[0]) as content:
        assert {"unistore/converters/registry.py", "unistore/schemas/tables.py"} <= set(content.namelist())
    python = environment(place / "venv", wheels)
    rng = np.random.default_rng(0)
    pings = {
        name: rng.integers(0, 4096, (count, SAMPLES)).astype(np.uint16) for name, (_, count) in PINGS.items()
    }
    found = Installed(python, place / "work", pings)
    found.folder.mkdir()
    for name, echoes in pings.items():
        write(found.folder / "pings" / name, PINGS[name][0], echoes)
    found.unistore("convert", "pings", "reference.zarr")
    return found


def environment(folder: Path, wheels: list[Path]) -> Path:
    """A fresh environment with the wheels; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*install, "--quiet", "--disable-pip-version-check", *map(str, wheels)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text(
        "\n".join(others)
    )  # found after its own; their .pth files are not read
    return python


def tree(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_unistore_is_the_installed_one(installed: Installed) -> None:
    told = installed.script(
        "import unistore, unistore_sonar; print(unistore.__file__); print(unistore_sonar.__file__)"
    )
    assert all(Path(line).is_relative_to(installed.python.parents[1]) for line in told.split())


def test_the_package_is_short() -> None:
    modules = [text for name, text in package().items() if name.endswith(".py")]
    assert len([line for text in modules for line in text.splitlines() if line.strip()]) <= 160


def test_commands_and_code_of_the_page(installed: Installed) -> None:
    for line in block("console").splitlines():
        prompt, program, *arguments = shlex.split(line)
        assert (prompt, program) == ("$", "unistore")
        installed.unistore(*arguments)
    assert installed.script(block("python")).startswith("torch.Size([64, 50])")
    page = (installed.folder / "pings.html").read_text()
    assert page.count("<img") == (4 if importlib.util.find_spec("matplotlib") else 0)
    assert "kHz: 200, the largest" in page or "unistore[plot]" in page
    assert tree(installed.folder / "again") == tree(installed.folder / "pings")
    low = zarr.open_group(installed.folder / "low.zarr", mode="r")["rows/rate"]
    assert np.unique(low[:]).tolist() == [96]


def all_rates() -> NDArray[np.int64]:
    return np.repeat([rate for rate, _ in PINGS.values()], [count for _, count in PINGS.values()])


def test_the_store_has_the_values(installed: Installed) -> None:
    store = zarr.open_group(installed.folder / "reference.zarr", mode="r")
    np.testing.assert_array_equal(store["rows/echoes"][:], np.concatenate(list(installed.pings.values())))
    np.testing.assert_array_equal(store["rows/rate"][:], all_rates())
    assert store.attrs["unistore"]["family"] == "sonar"


def test_help_has_the_options(installed: Installed) -> None:
    told = installed.unistore("convert", "sonar", "--help").stdout
    assert "Sonar pings: .bin files with a 16-byte header." in told
    assert re.search(r"--rate KHZ\s+Take the files of this sample rate alone", told)
    assert "--on-error" in told
    assert "unistore convert sonar pings/ low.zarr --rate 96" in told
    assert re.search(r"sonar\s+Sonar pings: \.bin", installed.unistore("convert", "--help").stdout)
    wrong = installed.unistore("convert", "sonar", "pings", "no.zarr", "--rate", "0", code=2)
    assert "rate" in wrong.stderr


def test_bad_files_are_told_and_skipped(installed: Installed) -> None:
    shutil.copytree(installed.folder / "pings", installed.folder / "mixed")
    good = (installed.folder / "pings/train/a.bin").read_bytes()
    bad = {
        "train/cut.bin": good[:-3],
        "train/empty.bin": b"",
        "val/other.bin": b"RIFF" + good[4:],
        "val/zero.bin": good[:8] + bytes(4),
        "val/huge.bin": good[:8] + b"\xff" * 8,
    }
    for name, content in bad.items():
        (installed.folder / "mixed" / name).write_bytes(content)
    refused = installed.unistore("convert", "sonar", "mixed", "mixed.zarr", code=2)
    assert all(name in refused.stderr for name in bad)
    assert not (installed.folder / "mixed.zarr").exists()
    installed.unistore("convert", "sonar", "mixed", "mixed.zarr", "--on-error", "skip", code=3)
    report = json.loads((installed.folder / "mixed.zarr" / "unistore-report.json").read_text())
    assert sorted(report["left_out"]) == sorted(bad)
    store = zarr.open_group(installed.folder / "mixed.zarr", mode="r")
    np.testing.assert_array_equal(store["rows/echoes"][:], np.concatenate(list(installed.pings.values())))
    installed.unistore("verify", "mixed.zarr", "--against", "mixed")


KILLED = """
    import os, signal, sys
    import unistore
    import unistore.conversion.convert
    {small}

    def converted(strike):
        pid = os.fork()
        if pid == 0:
            count = 0
            def hook(event, arguments):
                nonlocal count
                if event in ("open", "os.rename", "os.mkdir") and "killed.zarr" in os.fsdecode(arguments[0]):
                    count += 1
                    if count == strike:
                        os.kill(os.getpid(), signal.SIGKILL)
            if strike:
                sys.addaudithook(lambda event, arguments: (
                    hook(event, arguments) if arguments and isinstance(arguments[0], (str, bytes)) else None))
            unistore.convert("pings", "killed.zarr", "sonar", overwrite=True)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    unistore.convert("pings", "small.zarr", "sonar")
    for strike in (30, 60, 90):
        assert converted(strike) == -signal.SIGKILL, strike
        assert os.path.exists("killed.zarr.unistore-build"), strike
    assert converted(0) == 0
    assert not os.path.exists("killed.zarr.unistore-build")
"""

EXECUTORS = """
    import sys
    import unistore
    import unistore.conversion.convert
    {small}

    if __name__ == "__main__":
        unistore.convert("pings", "workers.zarr", "sonar", workers=2)
        import dask
        from distributed import LocalCluster
        with dask.config.set({{"distributed.worker.daemon": True}}), LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True,
            host="127.0.0.1", dashboard_address="127.0.0.1:0",
        ) as cluster:
            unistore.convert("pings", "dask.zarr", "sonar", scheduler=cluster.scheduler_address)
"""


def test_killed_and_continued_and_by_every_executor(installed: Installed) -> None:
    installed.script(KILLED.format(small=SMALL))
    installed.script(EXECUTORS.format(small=SMALL))
    expected = tree(installed.folder / "small.zarr")
    assert sum("/c/" in key and key.startswith("rows/echoes") for key in expected) > 3
    for name in ("killed", "workers", "dask"):
        assert tree(installed.folder / f"{name}.zarr") == expected, name


def test_damage_is_found_and_repaired(installed: Installed) -> None:
    store = installed.folder / "damaged.zarr"
    shutil.copytree(installed.folder / "reference.zarr", store)
    shard = next(path for path in (store / "rows/echoes/c").rglob("*") if path.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    assert "rows/echoes" in installed.unistore("verify", "damaged.zarr", code=1).stdout
    installed.unistore("verify", "damaged.zarr", "--repair", "pings")
    assert tree(store) == tree(installed.folder / "reference.zarr")
    installed.unistore("verify", "damaged.zarr")


def test_forms_and_rules_of_its_arrays(installed: Installed, forge: Callable[..., None]) -> None:
    store = installed.folder / "forged.zarr"
    shutil.copytree(installed.folder / "reference.zarr", store)

    def told() -> str:
        return " ".join(installed.unistore("verify", "forged.zarr", code=1).stdout.split())

    rates = all_rates()
    for rate, expected in (
        (7, "rows/rate row 5 differs from the row before it, of the same file"),
        (0, "rows/rate row 5 is 0, expected 1 or more"),
    ):
        rates[5] = rate
        forge(store, {"rows/rate": rates})
        assert expected in told()
    forge(store, {"rows/rate": all_rates()})
    installed.unistore("verify", "forged.zarr")
    forge(store, {}, {"samples": {"count": 1431, "table": "rows"}})
    expected = "has 1432 rows, expected 1431 (the root's count of samples)"
    assert f"rows/echoes {expected}" in told()
    assert f"rows/echoes: {expected}" in installed.script("""
        import unistore
        try:
            unistore.Store("forged.zarr").array("rows/echoes")
        except unistore.StoreError as error:
            print(error)
    """)


def test_a_changed_source_differs(installed: Installed) -> None:
    shutil.copytree(installed.folder / "pings", installed.folder / "changed")
    file = installed.folder / "changed/train/c.bin"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    told = installed.unistore("verify", "reference.zarr", "--against", "changed", code=1).stdout
    assert "rows/echoes" in told


def test_inspect_tells_a_command_and_code_that_run(installed: Installed) -> None:
    about = json.loads(installed.unistore("inspect", "pings", "--json").stdout)
    assert (about["kind"], about["family"], about["reason"]) == (
        "source",
        "sonar",
        "a.bin begins with PING",
    )
    program, *arguments = shlex.split(about["command"])
    arguments[-1] = "commanded.zarr"
    assert program == "unistore"
    installed.unistore(*arguments)
    assert tree(installed.folder / "commanded.zarr") == tree(installed.folder / "reference.zarr")
    about = json.loads(installed.unistore("inspect", "reference.zarr", "--json").stdout)
    assert (about["kind"], about["family"], about["samples"]["count"]) == ("store", "sonar", 1432)
    assert "echoes torch.Size([64, 50])" in installed.script(about["snippet"])
    installed.unistore("convert", "sonar", "pings", "two.zarr", "--rate", "96", "--rate", "200")
    assert "--rate 96 --rate 200" in installed.unistore("inspect", "two.zarr").stdout


LOADS = """
    import numpy as np
    import torch
    import unistore

    if __name__ == "__main__":
        dataset = unistore.Dataset("reference.zarr")
        expected = np.load("expected.npy")
        for row in (0, 700, 1431):
            assert np.array_equal(np.asarray(dataset[row]["echoes"]), expected[row]), row
        shuffled = {"batch_size": 100, "collate_fn": unistore.collate, "sampler": unistore.Shuffle(dataset)}
        loaders = {
            "torch": torch.utils.data.DataLoader(dataset, num_workers=2, **shuffled),
            "unistore": unistore.Loader(dataset, batch_size=100, shuffle=True),
        }
        for name, loader in loaders.items():
            seen = np.zeros(len(expected), bool)
            for batch in loader:
                index = np.asarray(batch["index"])
                assert np.array_equal(np.asarray(batch["echoes"]), expected[index]), name
                seen[index] = True
            assert seen.all(), name
"""


def test_dataset_dataloader_and_loader(installed: Installed) -> None:
    np.save(installed.folder / "expected.npy", np.concatenate(list(installed.pings.values())))
    installed.script(LOADS)


BROKEN = {
    "lidar": "raise ImportError('no liblidar')",
    "sodar": "from unistore_sonar import FAMILY; FAMILY = FAMILY.name",
    "radar": """
        from dataclasses import replace
        from unistore_sonar import FAMILY
        from unistore_sonar.converter import SonarConverter
        FAMILY = replace(FAMILY, name="radar", converter="unistore_radar:RadarConverter")
        class RadarConverter(SonarConverter):
            def look(self, file): raise RuntimeError("no right to look")
    """,
}
"""Families of packages with faults, by the entry point's name."""


@pytest.fixture
def broken(installed: Installed) -> Iterator[None]:
    """Packages with faults beside the others."""
    (packages,) = installed.python.parents[1].glob("lib/python*/site-packages")
    made = [packages / f"unistore_{name}.py" for name in BROKEN]
    for path, text in zip(made, BROKEN.values(), strict=True):
        path.write_text(textwrap.dedent(text))
    about = packages / "unistore_broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: unistore-broken\nVersion: 1.0\n")
    points = "\n".join(f"{name} = unistore_{name}:FAMILY" for name in BROKEN)
    (about / "entry_points.txt").write_text(f"[unistore.families]\n{points}\n")
    yield
    for path in made:
        path.unlink()
    shutil.rmtree(about)


@pytest.mark.usefixtures("broken")
def test_broken_families_disable_nothing_else(installed: Installed) -> None:
    np.save(installed.folder / "plain.npy", np.arange(10))
    named = installed.unistore("convert", "rows", "plain.npy", "plain.zarr").stderr
    assert len(re.findall("^unistore: family lidar is left out: .*no liblidar$", named, re.MULTILINE)) == 1
    assert (
        len(re.findall("^unistore: family sodar is left out: .*expected a Family$", named, re.MULTILINE)) == 1
    )
    assert "radar" not in named, "only detection asks it"
    named = installed.unistore("convert", "plain.npy", "again.zarr").stderr
    assert (
        len(re.findall("^unistore: family radar is left out: .*no right to look$", named, re.MULTILINE)) == 1
    )
    assert tree(installed.folder / "again.zarr") == tree(installed.folder / "plain.zarr")
    installed.unistore("convert", "sonar", "pings", "beside.zarr")
    assert tree(installed.folder / "beside.zarr") == tree(installed.folder / "reference.zarr")


@pytest.mark.usefixtures("broken")
def test_a_converter_of_another_family_is_refused(installed: Installed) -> None:
    told = installed.unistore("convert", "radar", "pings", "radar.zarr", code=2).stderr
    assert "unistore_radar:RadarConverter has the family 'sonar'" in told
    assert not (installed.folder / "radar.zarr").exists()
