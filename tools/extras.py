"""Install each extra by itself in an empty environment: its size, what works there, and what is missing.

``make extras`` runs this with a wheel of the checkout. An environment of every extra is made, measured, tried
and removed. Sources of an extra that is installed are inspected, converted and verified. For an extra that is
not installed, each command must name it in one line. ``--write`` puts sizes into ``docs/installation.md``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import boto3
import numpy as np

from tests.support.extras import SOURCES
from tests.support.fake_hub import TOKEN, FakeHub, running_hub
from tests.support.store_files import tree
from tests.unistore.remote.conftest import SERVER
from unistore.system.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/installation.md"
BASE = "base"
NOT_OF_UNISTORE = {"pip", "setuptools", "wheel"}
_PIP_OPTIONS = ("-qq", "--no-cache-dir", "--disable-pip-version-check")
_LIMIT = 600  # seconds of one command, so that one that hangs is an error
_BUCKET = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}
_CLUSTER = """
import sys
from distributed import LocalCluster
options = {"n_workers": 1, "processes": False, "protocol": "tcp", "dashboard_address": None}
with LocalCluster(**options, threads_per_worker=1, host="127.0.0.1") as cluster:
    print(cluster.scheduler.address, flush=True)
    sys.stdin.read()
"""
_LOADER = """
import sys, numpy as np, unistore
dataset = unistore.Dataset(sys.argv[1])
loader = unistore.Loader(dataset, batch_size=10, num_workers=0)
read = np.concatenate([batch["data"].numpy() for batch in loader])
assert np.array_equal(read, np.load(sys.argv[2]))
"""


class Measured(NamedTuple):
    """An environment after the installation of unistore."""

    packages: dict[str, str]  # versions by name
    megabytes: float
    megabytes_without_bytecode: float
    seconds: float


class Environment:
    """An empty virtual environment.

    Parameters
    ----------
    folder : Path
        Folder to make.
    python : str
        The interpreter that makes it.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        self._empty = _sizes(folder)

    def install(self, wheel: Path, extra: str, constraints: Path) -> Measured:
        """Install a wheel with an extra, or without one (``"base"``), as a user does."""
        wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        pip = [self.folder / "bin/python", "-m", "pip", "install"]
        start = time.monotonic()
        subprocess.run(
            [*pip, *_PIP_OPTIONS, "--constraint", constraints, wanted],
            check=True,
            env=environment,
        )
        seconds = time.monotonic() - start
        total, bytecode = (now - before for now, before in zip(_sizes(self.folder), self._empty, strict=True))
        listed = self.run("python", "-m", "pip", "list", "--format", "freeze").stdout.split()
        packages = dict(line.split("==") for line in listed if "==" in line)
        for name in NOT_OF_UNISTORE:
            packages.pop(name, None)
        packages.setdefault("unistore", "")  # of a file: pip lists it by an address
        return Measured(packages, total / 1e6, (total - bytecode) / 1e6, seconds)

    def run(self, program: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment outside of the checkout."""
        return subprocess.run(
            [str(self.folder / "bin" / program), *map(str, arguments)],
            env={**_bare_environment(), **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )


def _bare_environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "COLUMNS": "1000",
    }


def _sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes of all files in a folder, and those of bytecode."""
    total = bytecode = 0
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            total += size
            bytecode += size if path.suffix == ".pyc" else 0
    return total, bytecode


class Trial:
    """What is tried in an environment, and what went wrong.

    Parameters
    ----------
    environment : Environment
        An environment with unistore.
    extra : str
        The extra that is installed there, ``"base"``, or ``"all"``.
    """

    def __init__(self, environment: Environment, extra: str) -> None:
        self.environment = environment
        installed = {extra: (), "all": EXTRAS}.get(extra) or ([extra] if extra in EXTRAS else [])
        modules = {module for name in installed for module in EXTRAS[name].modules}
        self.available = {name for name, other in EXTRAS.items() if modules.issuperset(other.modules)}
        self.is_base = extra == BASE
        self.named: dict[str, None] = {}
        self.failures: list[str] = []

    def check(self, extra: str, program: str, *arguments: object, **variables: str) -> bool:
        """Run a command that needs an extra: it succeeds, or names the extra that is not installed.

        Returns
        -------
        bool
            Whether the command succeeded.
        """
        done = self.environment.run(program, *arguments, **variables)
        said = done.stdout + done.stderr
        command = f"{program} {' '.join(map(str, arguments))}"
        if extra in self.available:
            if done.returncode:
                self.failures.append(f"{command} fails:\n{said}")
            return not done.returncode
        lines = [line.strip() for line in said.splitlines()]
        naming = [line for line in lines if "pip install" in line]
        expected = f"pip install 'unistore[{extra}]'"
        if program == "unistore" and (done.returncode not in (1, 2) or "Traceback" in said):
            self.failures.append(f"{command} ends with {done.returncode}:\n{said}")
        elif len(naming) != 1 or expected not in naming[0] or "unexpected" in said:
            self.failures.append(f"{command} does not name {extra} in one line:\n{said}")
        self.named |= dict.fromkeys(_message(lines))
        return False

    def sources(self, folder: Path) -> None:
        """Inspect, convert and verify sources of the extras that are there; with the base, of all others."""
        tried: set[str] = set()
        for name, case in SOURCES.items():
            is_there = case.extra in self.available
            if not is_there and not self.is_base:
                continue
            (folder / name).mkdir(parents=True)
            source = case.write(folder / name)
            store = folder / name / "a.zarr"
            if is_there or case.extra not in tried:
                self.check(case.extra, "unistore", "inspect", source)
                self.check(case.extra, "unistore", "convert", source, store, "--dry-run")
            if self.check(case.extra, "unistore", "convert", case.family, source, store):
                self.check(case.extra, "unistore", "verify", store, "--against", source)
            elif store.exists():
                self.failures.append(f"{name}: a store is begun without what it needs")
            tried.add(case.extra)

    def arrays(self, folder: Path, server: str, hub: FakeHub) -> None:
        """Load tensors, convert on a cluster, read and write a bucket, and read a repository of the Hub."""
        folder.mkdir()
        values = folder / "values.npy"
        store = folder / "a.zarr"
        np.save(values, np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32))
        commands: list[list[object]] = [
            ["convert", values, store],
            ["inspect", store, "--html", folder / "a.html"],
            ["verify", store, "--against", values],
            ["export", store, folder / "files"],
        ]
        for words in commands if self.is_base else commands[:1]:
            done = self.environment.run("unistore", *words)
            if done.returncode:
                self.failures.append(f"{words} fails:\n{done.stderr}")
        if self.is_base or "torch" in self.available:
            self.check("torch", "python", "-c", _LOADER, store, values)
        if self.is_base or "cloud" in self.available:
            self._bucket(values, server)
        if self.is_base or "hub" in self.available:
            self._repository(values, store, hub)
        if self.is_base or "cluster" in self.available:
            with self._scheduler() as address:
                self.check(
                    "cluster", "unistore", "convert", values, folder / "b.zarr", "--scheduler", address
                )

    def _bucket(self, values: Path, server: str) -> None:
        bucket = f"{self.environment.folder.name}-bucket"
        access = {**_BUCKET, "AWS_ENDPOINT_URL": server}
        boto3.client(
            "s3",
            endpoint_url=server,
            region_name=_BUCKET["AWS_REGION"],
            aws_access_key_id=_BUCKET["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=_BUCKET["AWS_SECRET_ACCESS_KEY"],
        ).create_bucket(Bucket=bucket)
        url = f"s3://{bucket}/a.zarr"
        for words in (["convert", values, url], ["inspect", url], ["verify", url]):
            self.check("cloud", "unistore", *words, **access)

    def _repository(self, values: Path, store: Path, hub: FakeHub) -> None:
        name = f"datasets/org/{self.environment.folder.name}"
        files = {f"a.zarr/{key}": content for key, content in tree(store).items()}
        hub.add(name, {**files, values.name: values.read_bytes()}, private=True, readers={TOKEN})
        access = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(store.parent / "huggingface"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        url = f"hf://{name}"
        converted = store.parent / "c.zarr"
        for words in (
            ["inspect", f"{url}/a.zarr"],
            ["verify", f"{url}/a.zarr", "--against", values],
            ["convert", f"{url}/{values.name}", converted],
        ):
            self.check("hub", "unistore", *words, **access)
        if "hub" in self.available:
            self.check("hub", "unistore", "verify", converted, "--against", values)

    @contextmanager
    def _scheduler(self) -> Iterator[str]:
        """Start a cluster of the environment if it can, else yield an address without one."""
        if "cluster" not in self.available:
            yield "tcp://127.0.0.1:1"
            return
        with _serving([self.environment.folder / "bin/python", "-c", _CLUSTER]) as address:
            yield address

    def doctor(self) -> None:
        """Check that doctor lists the extras that are not installed, and only these."""
        said = self.environment.run("unistore", "doctor").stdout
        listed = set(re.findall(r"pip install 'unistore\[(\w+)\]'", said))
        if listed != set(EXTRAS) - self.available:
            self.failures.append(f"doctor lists {sorted(listed)}:\n{said}")


def _message(lines: Sequence[str]) -> Iterator[str]:
    """Yield each line that names an extra, after the problem if it is only the fix."""
    for problem, line in pairwise(["", *lines]):
        if "pip install" in line:
            yield f"{problem} {line}" if line.startswith("fix:") else line


@contextmanager
def _serving(command: Sequence[object]) -> Iterator[str]:
    """Run a server that prints its address, until its input ends."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_bare_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def _added(measured: dict[str, Measured]) -> Iterator[tuple[str, int, str]]:
    """Yield every extra, the packages that it adds to the base, and their size."""
    base = measured[BASE]
    for extra, found in measured.items():
        if extra != BASE:
            added = len(found.packages) - len(base.packages)
            yield extra, added, _size(found.megabytes - base.megabytes)


def _page(measured: dict[str, Measured]) -> str:
    """Return the page about installation with the sizes that were measured."""
    base = measured[BASE]
    installs = f"installs {len(base.packages)} packages of {base.megabytes:.0f} MB"
    text, count = re.subn(r"installs \d+ packages of \d+ MB", installs, PAGE.read_text())
    assert count == 1, f"{PAGE.name} does not state the size of the base"
    for extra, packages, size in _added(measured):
        row = re.compile(rf"^(\| `{extra}` \| .* \|) \d+ \| [\d.]+ [MG]B", re.MULTILINE)
        text, count = row.subn(rf"\1 {packages} | {size}", text)
        assert count == 1, f"{PAGE.name} has no row of {extra}"
    return text


def _print_table(measured: dict[str, Measured]) -> None:
    print("| extra | packages | MB | MB without bytecode | seconds |")
    print("|---|---|---|---|---|")
    for extra, found in measured.items():
        sizes = f"{found.megabytes:.0f} | {found.megabytes_without_bytecode:.0f}"
        print(f"| {extra} | {len(found.packages)} | {sizes} | {found.seconds:.0f} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--extras", nargs="+", metavar="NAME", help="only these (base: without any); not with --write"
    )
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    parser.add_argument("--write", action="store_true", help="write the sizes into docs/installation.md")
    arguments = parser.parse_args()
    arguments.wheel = arguments.wheel.resolve()
    return arguments


def main() -> int:
    """Measure and try every extra."""
    arguments = _arguments()
    extras = arguments.extras or [BASE, *EXTRAS, "all"]
    measured: dict[str, Measured] = {}
    failures: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="extras-") as temporary,
        _serving([sys.executable, "-W", "ignore", "-c", SERVER]) as port,
        running_hub() as hub,
    ):
        constraints = Path(temporary, "constraints.txt")
        constraints.write_text(_torch_pin())
        for extra in extras:
            folder = Path(temporary, extra)
            environment = Environment(folder, arguments.python)
            measured[extra] = environment.install(arguments.wheel, extra, constraints)
            trial = Trial(environment, extra)
            trial.sources(folder / "sources")
            trial.arrays(folder / "arrays", f"http://127.0.0.1:{port}", hub)
            trial.doctor()
            failures += [f"with {extra}: {failure}" for failure in trial.failures]
            print(f"{extra}: {len(trial.failures)} failures", flush=True)
            if extra == BASE:
                print(*trial.named, sep="\n")
            print(*(f"{name} {version}" for name, version in measured[extra].packages.items()), sep=", ")
            shutil.rmtree(folder)
    _print_table(measured)
    print(*failures, sep="\n")
    if arguments.extras:
        return bool(failures)
    if arguments.write:
        PAGE.write_text(_page(measured))
    elif _page(measured) != PAGE.read_text():
        print(f"{PAGE.name} has other sizes: run this with --write")
    return bool(failures)


def _torch_pin() -> str:
    """Return the line of ``constraints.txt`` for torch, so that pip takes its build for processors."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


if __name__ == "__main__":
    sys.exit(main())
