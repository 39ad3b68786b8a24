"""What the fault scripts share: sources of every family, processes to kill, stores to compare with."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import InputError
from unistore.store.names import SOURCES
from unistore.store.reader import Store

DATA = Path(__file__).parents[2] / "tests" / "data"
FAMILIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "rows": (("rows/autzen_returns.h5",), {}),
    "point_cloud": (("pointcloud/thin_a.h5", "pointcloud/thin_b.h5"), {"voxel_size": (20.0,)}),
    "ct": (("ct/totalseg_a_hu.npy", "ct/totalseg_b_hu.npy"), {"window": ("lung",), "sparse": "coords"}),
    "spike": (("spike/reds_frames_140_162.dat",), {"voxel_bins": (5,)}),
    "trajectory": (("trajectory/robosuite100_lift_panda_demo.hdf5",), {}),
}
"""Sources and options of each family: small real files, with rows that are known only after reading."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of a script, whose help is its docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def family(name: str) -> tuple[Any, list[Path]]:
    """Converter and sources of a family."""
    files, options = FAMILIES[name]
    return make_converter(name, options), [DATA / file for file in files]


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by relative path, but for times of sources, which differ."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SOURCES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@dataclass
class Case:
    """A conversion to interrupt."""

    converter: Any
    sources: list[Path]
    overwrite: bool = False

    def convert(self, destination: str | Path, executor: Any = None, **settings: Any) -> None:
        """Convert; a store that is finished already is no error."""
        try:
            run(
                self.converter,
                self.sources,
                destination,
                Settings(overwrite=self.overwrite, **settings),
                executor=executor,
            )
        except InputError as error:
            if "a finished store exists here" not in str(error):
                raise


@dataclass(frozen=True)
class Reference:
    """The store of an uninterrupted conversion."""

    files: dict[str, bytes]
    digest: str

    @classmethod
    def of(cls, store: Path) -> Reference:
        """Read the store at a path."""
        return cls(tree(store), Store(store).attributes["seal"]["digest"])

    def check(self, destination: Path, what: object) -> None:
        """Exit with a message unless the same store, and nothing else, is at a path; then remove it."""
        if Store(destination).attributes["seal"]["digest"] != self.digest or tree(destination) != self.files:
            sys.exit(f"FAILED: {what}: the store differs from that of an uninterrupted run")
        beside = sorted(path.name for path in destination.parent.iterdir())
        if beside != [destination.name]:
            sys.exit(f"FAILED: {what}: left beside the store: {beside}")
        shutil.rmtree(destination.parent)


def start(job: Callable[[], None]) -> int:
    """Run a job in a forked process; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> bool:
    """Wait for a process: True if it ended by itself, False if it was killed. A failure ends the trials."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        sys.exit("FAILED: the command itself failed")
    return True
