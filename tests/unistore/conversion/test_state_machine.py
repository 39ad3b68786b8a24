"""Any history of conversions: sources damaged and repaired, killed, resumed, skipped, overwritten.

The model knows what plain numpy reads from the sources, and so what the destination must hold.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import unistore.zarr3.durable
from tests.support.problems import of_kind
from tests.support.state_machines import run_machine
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError, InputError
from unistore.integrity.files import check_files
from unistore.store.names import build_folder
from unistore.store.reader import Store

NAMES = ("train/s0.npz", "train/s1.npz", "train/s3.npz", "val/s2.npz", "val/s4.npz")
UNREADABLE = ("cut", "empty", "lacking")
"""Damage that a scan finds; the other kind is found once values are read."""
HEALTH = ("sound", "sound", "nan", "nan", "removed", *UNREADABLE)
DAMAGE = ("", "", "torn record", "temporary file", "short shard", "lost shard")
"""Of a build folder."""
OUTCOMES = ("unexpected", "done", "taken", "bad sources", "other sources", "skipped before", "stopped")
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


@dataclass(frozen=True)
class Command:
    """Options of a convert command."""

    on_error: str
    brightness: int
    overwrite: bool
    restart: bool


@dataclass(frozen=True)
class Begun:
    """What an unfinished conversion must find again to be continued."""

    brightness: int
    sources: frozenset[tuple[str, int]]
    left_out: frozenset[tuple[str, str]]


commands = st.builds(
    Command,
    on_error=st.sampled_from(("fail", "skip", "skip")),
    brightness=st.sampled_from((0, 0, 0, 1)),
    overwrite=st.sampled_from((False, True, True)),
    restart=st.sampled_from((False, False, False, True)),
)
changes = st.fixed_dictionaries(
    {"restart": st.just(False)},
    optional={"on_error": st.sampled_from(("fail", "skip")), "overwrite": st.booleans()},
)
Stop = tuple[str, int]
stops = st.none() | st.tuples(
    st.sampled_from(("step", "interrupt", "full disk", "kill", "kill between")), st.integers(0, 50)
)
"""How a command is stopped, and after how much."""


def failing(full: bool, after: int) -> Callable[[int], None]:
    """An fsync that finds a full disk after so many times, or Ctrl-C."""
    left = after

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else KeyboardInterrupt
        os.fsync(descriptor)

    return fsync


class Conversions(RuleBasedStateMachine):
    """One destination, and a folder of sources that change.

    Attributes
    ----------
    files
        Version and health of each source.
    standing
        Digest of the store at the destination.
    moved
        Whether a command may have been stopped after it had moved its store there.
    begun
        What may have been begun and not finished; None: nothing.
    stopped
        The last command, if it was stopped.
    """

    place: Path
    toy: Any
    stopping: Any
    truth: Callable[..., dict[str, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.work = Path(tempfile.mkdtemp(dir=self.place))
        self.sources, self.out = self.work / "sources", self.work / "out.zarr"
        self.versions = 0
        self.files: dict[str, tuple[int, str]] = {}
        self.standing: str | None = None
        self.moved = False
        self.begun: set[Begun | None] = {None}
        self.stopped: Command | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.work)

    @initialize(seed=st.integers(0, 99), health=st.sampled_from(("sound", "nan", "cut")), whole=st.booleans())
    def make_sources(self, seed: int, health: str, whole: bool) -> None:
        self.tables = ("rows", "points", "windows/low") if whole else ("rows",)
        for number, name in enumerate(NAMES[:4]):
            self.change(name, seed + number, health if number == 1 else "sound")

    @rule(name=st.sampled_from(NAMES), seed=st.integers(0, 99), health=st.sampled_from(HEALTH))
    def change(self, name: str, seed: int, health: str) -> None:
        """A source is new, repaired, rewritten, damaged or removed."""
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(1, 90))
        arrays = {
            "value": np.rint(rng.normal(0, 3, (rows, 3))),
            "image": rng.integers(0, 100, (rows, 6 + seed % 3, 7 + seed % 5), dtype=np.uint8),
            "label": rng.integers(0, 50, rows),
        }
        if health == "nan":
            arrays["value"][-1] = np.nan
        if health == "lacking":
            del arrays["label"]
        path = self.sources / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)
        if health in ("cut", "empty"):
            path.write_bytes(path.read_bytes()[: 100 if health == "cut" else 0])
        self.versions += 1
        self.files[name] = self.versions, health
        os.utime(path, ns=(self.versions * 10**9, self.versions * 10**9))
        if health == "removed" and len(self.files) > 1:
            path.unlink()
            del self.files[name]

    @rule(command=commands, stop=stops)
    def convert(self, command: Command, stop: Stop | None) -> None:
        """Any command, undisturbed or stopped."""
        self._settle(command, self._run(command) if stop is None else self._stopped(command, *stop))

    @precondition(lambda self: self.stopped)
    @rule(changes=changes, damage=st.sampled_from(DAMAGE), number=st.integers(0, 99), stop=stops)
    def resume(self, changes: dict[str, Any], damage: str, number: int, stop: Stop | None) -> None:
        """The command that was stopped, maybe with other options that do not decide the content."""
        assert self.stopped is not None
        self._damage_build_folder(damage, number)
        self.convert(replace(self.stopped, **changes), stop)

    def _damage_build_folder(self, damage: str, number: int) -> None:
        build = build_folder(self.out)
        journal = build / "journal.jsonl"
        if damage == "torn record" and journal.exists():
            journal.write_bytes(journal.read_bytes()[: -1 - number % 9])
            self.begun.add(None)  # if it held one record
        files = sorted(path for path in (build / "store").rglob("*") if path.is_file())
        if not files:
            return
        path = files[number % len(files)]
        if damage == "temporary file":
            path.with_name(f".{path.name}.4711-beef.part").write_bytes(b"half")
        elif damage == "short shard":
            path.write_bytes(path.read_bytes()[:-1])
        elif damage == "lost shard":
            path.unlink()

    def _stopped(self, command: Command, way: str, after: int) -> str:
        if way == "step":
            return self._run(command, self.stopping(after // 5))
        if way.startswith("kill"):
            return self._killed(command, way, after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unistore.zarr3.durable, "fsync", failing(way == "full disk", after))
            return self._run(command)

    def _killed(self, command: Command, way: str, after: int) -> str:
        """Run a command in a process that is killed before an operation on a file.

        With "kill between" only those on whole folders count, and on files beside them.
        """
        pid = os.fork()
        if pid == 0:
            self._kill_itself(way, after)
            outcome = "unexpected"
            try:
                outcome = self._run(command)
            finally:
                os._exit(OUTCOMES.index(outcome))
        status = os.waitpid(pid, 0)[1]
        assert not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL, "it hangs"
        return "stopped" if os.WIFSIGNALED(status) else OUTCOMES[os.WEXITSTATUS(status)]

    def _kill_itself(self, way: str, after: int) -> None:
        left = after // 2 if way == "kill between" else after * 5
        between = (self.work, build_folder(self.out))

        def strike(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in OPERATIONS and str(arguments[0]).startswith(str(self.work)):
                left -= way == "kill" or Path(arguments[0]).parent in between
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        signal.alarm(60)

    def _run(self, command: Command, executor: Any = None) -> str:
        """Run a command; returns how it ended."""
        try:
            self._convert_to(self.out, command, executor)
        except InputError as error:
            return "taken" if of_kind("exists")(error) else "bad sources"
        except ConversionError as error:
            said = {
                "used other sources or options": "other sources",
                "--on-error skip to continue": "skipped before",
                "No space left": "stopped",
            }
            found = [outcome for text, outcome in said.items() if text in str(error)]
            if not found:
                raise
            return found[0]
        except KeyboardInterrupt:
            return "stopped"
        return "done"

    def _convert_to(self, out: Path, command: Command, executor: Any = None) -> str:
        return run(
            self.toy(tables=self.tables, brightness=command.brightness),
            [self.sources],
            out,
            Settings(overwrite=command.overwrite, restart=command.restart, on_error=command.on_error),
            executor=executor,
        ).digest

    def _of(self, *health: str) -> frozenset[str]:
        """Sources in a state of health."""
        return frozenset(name for name, (_, found) in self.files.items() if found in health)

    def _settle(self, command: Command, outcome: str) -> None:
        """Hold how a command ended, and what stands at the destination, against the model."""
        note(f"{outcome} with {self.files}")
        event(outcome)
        self.stopped = command if outcome == "stopped" else None
        unreadable, nan = self._of(*UNREADABLE), self._of("nan")
        scanned = frozenset((name, at) for name, (at, _) in self.files.items() if name not in unreadable)
        now = Begun(
            command.brightness, scanned, frozenset((name, self.files[name][1]) for name in unreadable)
        )
        before = {None} if command.restart else self.begun
        resumed = before != {None}
        scan_refuses = bool(unreadable) if command.on_error == "fail" else not scanned
        if outcome == "stopped":
            self.begun = {*self.begun, None, now}
        elif outcome == "other sources":
            assert not before <= {None, now}
            self.begun -= {None, now}
        elif outcome == "skipped before":
            assert command.on_error == "fail"
            assert now in before
            self.begun = {now}
        elif outcome == "bad sources" and scan_refuses:
            pass
        else:
            assert not scan_refuses or outcome == "taken"
            assert not before.isdisjoint({None, now})
            self.begun = {None}
        if outcome == "bad sources":
            assert scan_refuses or (nan if command.on_error == "fail" else not self._of("sound"))
        if outcome == "taken":
            assert self.standing is not None
            assert not command.overwrite
            self.begun = {each for each in before if each in (None, now)}
        if outcome == "done":
            assert command.on_error == "skip" or not nan
            assert self.standing is None or command.overwrite or self.moved
        self._look(command, outcome)
        if outcome == "done" and resumed:
            clean = self._convert_to(self.work / "clean" / "out.zarr", command)
            assert self.standing == clean
            shutil.rmtree(self.work / "clean")

    def _look(self, command: Command, outcome: str) -> None:
        """What stands at the destination, or is set aside, is whole: the store before, or the new one."""
        assert outcome in OUTCOMES[1:]
        stores = [path for path in (self.out, build_folder(self.out) / "old") if path.exists()]
        digests = [Store(path).attributes["seal"]["digest"] for path in stores]
        if outcome == "done":
            assert sorted(path.name for path in self.work.iterdir()) == ["out.zarr", "sources"]
        if digests and digests[0] != self.standing:
            assert outcome in ("done", "stopped")
            self._check_content(command)
        elif outcome != "done":
            assert set(digests) == {self.standing} - {None}
        assert set(digests[1:]) <= {self.standing}
        self.standing = digests[0] if digests else None
        self.moved = outcome == "stopped" and (self.moved or command.overwrite or bool(digests))

    def _check_content(self, command: Command) -> None:
        sound = sorted(self._of("sound"))
        assert check_files(str(self.out)).problems == ()
        group = zarr.open_group(self.out, mode="r")
        expected = self.truth([self.sources / name for name in sound], command.brightness)
        for path, values in expected.items():
            if self.tables == ("rows",) and path.removeprefix("sources/").startswith(("points", "windows")):
                continue
            found = group[path]
            assert isinstance(found, zarr.Array)
            np.testing.assert_array_equal(found[...], values, err_msg=path, strict=True)
        attributes = Store(self.out).attributes
        assert attributes["skipped"] == len(self.files) - len(sound)
        left_out = sorted({*self.files} - {*sound})
        if len({Path(name).parent for name in self.files}) == 1:  # names begin below the folder of all
            left_out = [Path(name).name for name in left_out]
        assert attributes["options"]["exclude"] == left_out


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_any_history_ends_in_what_the_sources_hold(
    toy: Any, truth_of_files: Callable[..., Any], stopping: Any, tmp_path: Path
) -> None:
    parts = {"toy": toy, "truth": staticmethod(truth_of_files), "stopping": stopping, "place": tmp_path}
    machine = type("Toys", (Conversions,), parts)
    run_machine(machine, histories=5, steps=20)
