"""Whether samples reach beyond their data, or a limit leaves none: told by readers, refused in one place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from unistore.data.kinds.protocol import SampleKind, SampleReader
from unistore.errors import InputError, Problem

__all__ = ["CuttingReader", "Reach", "check_reach", "reach_of", "spelled"]

_PAD = (
    'pad= says what stands there: "edge", "zero", a number, or "valid" (zeros, and how far the data reach '
    'is in each sample); pad="drop" leaves such samples out'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the sizes and limits of a kind go with what a store has.

    Attributes
    ----------
    samples
        Samples of an epoch.
    beyond
        How many of them reach beyond their data.
    told
        Whether the kind says what stands there.
    what
        What reaches beyond what; or, where there are no samples, which limit leaves none, and what there is.
        Empty: neither.
    fitting
        The kind, changed as little as it takes to have samples of which none is padded unless it says how;
        None: it fits, or nothing would help.
    """

    samples: int
    beyond: int = 0
    told: bool = False
    what: str = ""
    fitting: SampleKind | None = None


@runtime_checkable
class CuttingReader(Protocol):
    """A reader whose kind has sizes that data may be smaller than, or limits that nothing may meet."""

    def reach(self) -> Reach:
        """How they go with the store."""
        ...


def reach_of(reader: SampleReader) -> Reach:
    """See `CuttingReader.reach`; of any other reader, that all is well."""
    return reader.reach() if isinstance(reader, CuttingReader) else Reach(samples=len(reader))


def check_reach(readers: Sequence[SampleReader], paths: Sequence[str]) -> None:
    """Refuse samples that reach beyond their data and do not say how, and limits that leave no samples.

    Parameters
    ----------
    readers, paths
        One a store.

    Raises
    ------
    InputError
        Naming every store concerned, the sizes, and what fits.
    """
    found = [reach_of(reader) for reader in readers]
    problems = [
        Problem(path, reach.what, _cure(reach.fitting), "padding")
        for path, reach in zip(paths, found, strict=True)
        if reach.beyond and not reach.told
    ]
    if not problems and not any(reach.samples for reach in found):
        problems = [
            Problem(
                path, reach.what, f"{spelled(reach.fitting)} has samples" if reach.fitting else "", "empty"
            )
            for path, reach in zip(paths, found, strict=True)
            if reach.what
        ]
    if problems:
        raise InputError(problems)


def _cure(fitting: SampleKind | None) -> str:
    if fitting is None or getattr(fitting, "pad", None) is not None:
        return _PAD
    return f"{spelled(fitting)} fits; or {_PAD}"


def spelled(kind: Any) -> str:
    """A kind as Python code, without what is default: ``unistore.Patches(size=32)``."""
    if not dataclasses.is_dataclass(kind):
        return repr(kind)
    said = []
    for each in dataclasses.fields(kind):
        value = _short(getattr(kind, each.name))
        if value != _short(each.default):
            said.append(f"{each.name}={value}")
    return f"unistore.{type(kind).__name__}({', '.join(said)})"


def _short(value: Any) -> str:
    """A value of an option as Python code; extents that are all equal as one number."""
    if isinstance(value, tuple) and value and all(type(one) is int and one == value[0] for one in value):
        return repr(value[0])
    if isinstance(value, str):
        return f'"{value}"'
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
