"""Times of sweeps in KITTI's raw recordings: texts beside the folder of the sweeps, with a line a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np

from unistore.converters.files.paths import is_inside
from unistore.converters.opened import SourceFile
from unistore.errors import first_few
from unistore.system.types import Int64s

# What each text says of a sweep: when it was taken at the front, when it began, and when it ended
_FILES: Mapping[str, str] = {
    "timestamp": "timestamps.txt",
    "timestamp_start": "timestamps_start.txt",
    "timestamp_end": "timestamps_end.txt",
}
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000_000
_FORM = "but a time such as 2011-09-26 13:02:25.963389445 is expected"
_FIX = "copy the missing files, or move this file elsewhere, so that no times are stored"


@dataclass(frozen=True)
class SweepTimes:
    """What the texts say of one sweep.

    Attributes
    ----------
    times
        Nanoseconds since 1970-01-01 on the clock of the text, which names no time zone, by the names of
        `_FILES`. Those without a text are missing.
    files
        The texts.
    unread
        Names of texts outside the paths that the user gave, which are not read.
    """

    times: Mapping[str, int] = field(default_factory=dict)
    files: tuple[SourceFile, ...] = ()
    unread: tuple[str, ...] = ()


def times_of(sweep: SourceFile) -> SweepTimes:
    """Read the times of a sweep ``velodyne_points/data/0000000007.bin``: line 8 of each text.

    Raises
    ------
    InputError
        If a text has a line that is no time, or not as many lines as there are sweeps by the largest number,
        if a sweep beside such a text is not called by its number, or if another sweep has the same number.
    """
    times: dict[str, int] = {}
    files: list[SourceFile] = []
    unread: list[str] = []
    folder = sweep.path.parent
    for name, text in _FILES.items():
        path = folder.parent / text
        if not path.is_file():
            continue
        if sweep.roots and not is_inside(path, sweep.roots):
            unread.append(text)
            continue
        file = SourceFile(path, str(PurePosixPath(sweep.name).parent.parent / text), sweep.roots)
        file.check_whole()
        if not _is_number(sweep.path.stem):
            message = f"its name is not a number, which would be its line in {text}"
            raise sweep.problem(message, "name sweeps by their number: 0000000000.bin", "name")
        of_sweeps = _times_in(file, path.stat().st_mtime_ns)
        names = _names_by_number(folder, folder.stat().st_mtime_ns)
        number = int(sweep.path.stem)
        same = [each for each in names.get(number, ()) if each != sweep.path.name]
        if same:
            message = f"is sweep {number}, and so is {first_few(same)}, but {text} has one time for it"
            raise sweep.problem(message, "move one of them to another folder", "twice")
        count = max(names, default=-1) + 1  # a recording may lack some of them
        if len(of_sweeps) != count:
            message = (
                f"has {len(of_sweeps):,} times, but {count:,} are needed for the sweeps in {folder.name}"
            )
            raise file.problem(message, _FIX, "count")
        times[name] = int(of_sweeps[number])
        files.append(file)
    return SweepTimes(times, tuple(files), tuple(unread))


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdigit()


# Each sweep of a folder is opened by itself, and they share the texts.


@lru_cache(16)
def _names_by_number(folder: Path, _modified: int) -> Mapping[int, list[str]]:
    """Return the names of the sweeps in a folder by number, which ``2.bin`` and ``0000000002.bin`` share."""
    names: dict[int, list[str]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() == ".bin" and _is_number(path.stem):
            names.setdefault(int(path.stem), []).append(path.name)
    return names


@lru_cache(16)
def _times_in(file: SourceFile, _modified: int) -> Int64s:
    lines = file.path.read_text("ascii", "replace").rstrip().split("\n")
    times = []
    for number, line in enumerate(lines, 1):
        nanoseconds = _nanoseconds(line.strip())
        if nanoseconds is None:
            raise file.problem(f"has {line.strip()[:40]!r} in line {number}, {_FORM}", _FIX, "values")
        times.append(nanoseconds)
    return np.array(times, np.int64)


def _nanoseconds(text: str) -> int | None:
    """Return the nanoseconds of a time since 1970, or None if the text is no time that int64 holds."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    nanoseconds = seconds * _SECOND + int((match[7] or "").ljust(9, "0"))
    return nanoseconds if abs(nanoseconds) < 1 << 63 else None
