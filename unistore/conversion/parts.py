"""Parts of a conversion: independent jobs in one build folder, each with a lock and a journal of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unistore.errors import ConversionError, InputError, first_few

T = TypeVar("T")

_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})")
_JOURNAL = re.compile(r"journal-\d+-of-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class JobPart:
    """One of `count` jobs. Number 0 has no share of the work, and only seals."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> JobPart:
        """Parse ``"3/8"``."""
        if match := _TEXT.fullmatch(text):
            number, count = map(int, match.groups())
            if 1 <= number <= count:
                return cls(number, count)
        message = f"is {text!r}, but I/N with I from 1 to N is expected"
        raise InputError.at("--part", message, "give for example 3/8", "option")

    @property
    def suffix(self) -> str:
        """Return what the names of its files have."""
        return f"-{self.number}-of-{self.count}"

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return its items."""
        return items[self.number - 1 :: self.count] if self.number else ()

    def all(self) -> list[JobPart]:
        """Return all parts, this one first, the next ones behind it."""
        numbers = range(self.number, self.number + self.count)
        return [JobPart((number - 1) % self.count + 1, self.count) for number in numbers]

    def having(self, items: Sequence[T], missing: AbstractSet[T]) -> list[JobPart]:
        """Return the parts of which the share of `items` has missing ones, in the order of `all`."""
        return [part for part in self.all() if not missing.isdisjoint(part.share(items))]


SEALING = JobPart(0, 0)  # until the build folder says how many there are


def sealing_part(folder: Path, *, is_sealed: bool) -> JobPart:
    """Return the part that seals what was begun in a build folder, of no parts where that is done."""
    counts = begun_counts(folder)
    if not counts and not is_sealed:
        message = "no job of a conversion was started here, so there is no store to seal"
        raise InputError.at(str(folder), message, "run the jobs with --part first", "option")
    return JobPart(0, min(counts, default=0))


def check_begun_parts(folder: Path, part: JobPart | None) -> None:
    """Refuse to continue a conversion with another number of parts."""
    alone = (folder / "journal.jsonl").exists()
    counts = begun_counts(folder)
    fix = "Fix: continue it in the same way, or remove it with unistore clean"
    if part is None and counts:
        msg = f"{folder}: this conversion was started as {min(counts)} jobs with --part. {fix}"
        raise ConversionError(msg)
    if part is not None and (alone or counts - {part.count}):
        how = "without --part" if alone else f"as {min(counts - {part.count})} jobs"
        msg = f"{folder}: this conversion was started {how}, not as {part.count} jobs. {fix}"
        raise ConversionError(msg)


def not_ready(destination: str, numbers: Iterable[int]) -> ConversionError:
    """Return the error of a seal before the jobs with these numbers are finished."""
    shown = first_few([str(number) for number in numbers], 20)
    return ConversionError(f"{destination}: jobs that are not finished: {shown}. Fix: run them, then --seal")


def begun_counts(folder: Path) -> set[int]:
    """Return into how many parts a conversion was divided. Empty: it has none, or is not begun."""
    names = (_JOURNAL.fullmatch(path.name) for path in folder.glob("journal-*.jsonl"))
    return {int(name[1]) for name in names if name}
