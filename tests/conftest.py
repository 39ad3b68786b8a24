"""How all tests run: examples without a deadline, without waiting for a disk, and the longest tests first.

How long an example takes is the machine's affair; a test that hangs is ended anyway. Failures are printed
when they happen.
"""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs_torch import WITHOUT_TORCH
from tests.support.state_machines import HISTORIES
from tests.support.waiting import patience
from unistore.store.names import SOURCES
from unistore.system.extras import is_installed
from unistore.zarr3 import durable

if TYPE_CHECKING:
    from tests.support.cases import Case


patient: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("thorough", max_examples=1000, **patient)  # pytest --hypothesis-profile=thorough
settings.register_profile("patient", max_examples=50, **patient)
settings.load_profile("patient")

# No power is cut here, so nothing need reach a disk; a descriptor that is none is an error all the same.
os.fsync = os.fstat  # type: ignore[assignment]
os.sync = lambda: None


class AtOnce(Executor):
    """Call what would wait for the disk, which takes a fifth of a small conversion to start threads for."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], /, *values: Any, **options: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(function(*values, **options))
        except BaseException as error:
            future.set_exception(error)
        return future


durable.ThreadPoolExecutor = AtOnce  # type: ignore[misc, assignment]

# What commands print is compared in words: nothing is folded.
os.environ["COLUMNS"] = "400"

# A shell ignores SIGINT in what it runs in the background, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# imported once, not by every process that is forked from it
multiprocessing.set_forkserver_preload(["h5py", "pytest", "torch", "unistore.conversion.convert"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-digests", action="store_true", help="Record the digests of tests/test_digests.py"
    )
    parser.addoption(
        "--record-verdicts", action="store_true", help="Record the verdicts of tests/test_verdicts.py"
    )
    parser.addoption(
        "--record-tutorials", action="store_true", help="Write what commands print into docs/tutorials"
    )


def wants_torch(error: BaseException | None) -> bool:
    """Return whether an error comes from torch not being installed here."""
    if not isinstance(error, ImportError) or is_installed("torch"):
        return False
    name = (error.name or "").partition(".")[0]
    return name in ("torch", "torchdata") or "pip install 'unistore[torch]'" in str(error)


class Module(pytest.Module):
    """A module of tests, skipped if it imports torch and torch is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if wants_torch(error.__cause__):
                raise pytest.skip.Exception(WITHOUT_TORCH, allow_module_level=True) from error
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with skipped_without_torch():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with skipped_without_torch():
        return (yield)


@contextmanager
def skipped_without_torch() -> Iterator[None]:
    """Skip a test that fails because torch is not installed."""
    try:
        yield
    except ImportError as error:
        if wants_torch(error):
            pytest.skip(WITHOUT_TORCH)
        raise


class FailuresAtOnce:
    """Print a failure when it happens, and not again at the end."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        self.terminal.ensure_newline()
        self.terminal.write_sep("_", f"{report.nodeid} ({report.when})", red=True, bold=True)
        self.terminal.write_line(report.longreprtext)
        for title, text in report.sections:
            self.terminal.write_sep("-", title)
            self.terminal.write_line(text)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, config: pytest.Config) -> Generator[None]:
        errors = self.terminal.stats.get("error", [])
        if config.option.tbstyle == "auto" and all(error.when != "collect" for error in errors):
            config.option.tbstyle = "no"  # the tracebacks stand above; with --tb they are printed here too
        return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    terminal = plugins.get_plugin("terminalreporter")
    if terminal is not None:  # the processes of xdist have none
        plugins.register(FailuresAtOnce(terminal))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Stretch the limit of a test by how busy the machine is when the test starts."""
    marker = item.get_closest_marker("timeout")
    default = item.config.getoption("timeout")
    seconds = marker.args[0] if marker else float(default or item.config.getini("timeout"))
    if HISTORIES in os.environ:
        seconds = 86_400
    item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
    return (yield)


def forget_current_test() -> None:
    """Undo what pytest tells of the running test: a spare worker process serves its own environment only."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    forget_current_test()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    forget_current_test()


def pytest_collection_finish() -> None:
    """Have collections of garbage leave out thousands of tests and all that they import."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that may take minutes: at the end all processes but one would wait for them."""

    def most(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0

    items.sort(key=lambda item: most(item) < 300)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `case_name` runs for every case, one for `family_case` for one a family."""
    if {"case_name", "family_case"} & set(metafunc.fixturenames):
        from tests.support.cases import MAKERS, REAL

        if "case_name" in metafunc.fixturenames:
            metafunc.parametrize("case_name", list(MAKERS))
        if "family_case" in metafunc.fixturenames:
            metafunc.parametrize("family_case", REAL)


def maker(folder: Path) -> Callable[[str], tuple[Case, Path]]:
    """Return a function that makes the case of a name and its sealed store, once for all processes."""
    from tests.support.cases import MAKERS

    @cache
    def make(name: str) -> tuple[Case, Path]:
        place, record = folder / name, folder / f"{name}.pickle"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not record.exists():
                shutil.rmtree(place, ignore_errors=True)  # what failed in another process
                (place / "sources").mkdir(parents=True)
                case = MAKERS[name](place / "sources")
                case.convert(place / "store.zarr")
                record.write_bytes(pickle.dumps(case))
        return pickle.loads(record.read_bytes()), place / "store.zarr"

    return make


@pytest.fixture(scope="session")
def make_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Case, Path]]:
    """``make_case(name)``: the case and its sealed store, made once; neither is to be changed."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "cases").mkdir(exist_ok=True)
    return maker(folder / "cases")


@pytest.fixture
def copy_case(
    make_case: Callable[[str], tuple[Case, Path]], tmp_path: Path
) -> Callable[[str], tuple[Case, Path]]:
    """``copy_case(name)``: the case and a copy of its store, to be damaged."""

    def copy(name: str) -> tuple[Case, Path]:
        case, store = make_case(name)
        target = tmp_path / f"{name}.zarr"
        shutil.copytree(store, target)
        return case, target

    return copy


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """``tree(folder)``: every file of a folder by its path, but for the times of sources in stores."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != SOURCES)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    return read


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign libraries run in this process, so that what they do can be replaced."""
    monkeypatch.setattr("unistore.conversion.executors.processes.refused", nullcontext)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_family` without a Loader under spawn, whose workers import torch: one family has it."""
    from unistore import testing

    check = testing._check_loader
    monkeypatch.setattr(
        testing, "_check_loader", lambda store, method: method == "spawn" or check(store, method)
    )
