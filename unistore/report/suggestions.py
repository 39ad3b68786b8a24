"""Kinds of samples for a store: its natural one and those its family suggests, in sizes that fit."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import unistore
from unistore.converters.registry import get_family
from unistore.data.kinds.protocol import NamesGroup, SampleKind
from unistore.data.kinds.reach import Reach, as_code, reach_of
from unistore.data.parts import default_kind
from unistore.errors import InputError, Problem
from unistore.store.reader import Store

KINDS = ("Clips", "Patches", "Rows", "Segments", "SparsePoints", "Transitions", "Volumes", "Windows")
"""Kinds that `parse_kind` knows, names of `unistore`."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A kind of samples for one store.

    A kind from another package has no `kind` and `samples`, and its `text` is as declared.
    """

    declared: str
    """The kind that the family declares, as Python code."""
    kind: SampleKind | None
    """The kind in a size that fits the store."""
    text: str
    """`kind` as Python code."""
    reach: Reach
    """How the declared kind fits the store."""
    samples: int | None
    """Number of samples of `kind`."""

    @property
    def changed(self) -> bool:
        """Whether the declared kind does not fit the store."""
        return self.text != self.declared


def suggestions(store: Store, units: NDArray[np.int64] | None = None) -> list[Suggestion]:
    """Kinds that the family of a store suggests, without its natural kind.

    `units` are the rows of the sample table that are used; None: all.

    Raises
    ------
    InputError
        If the store's family is not installed.
    """
    found = []
    for declared in get_family(store.family).other_kinds:
        try:
            kind = parse_kind(declared)
        except InputError:  # a kind from another package
            found.append(Suggestion(declared, None, declared, Reach(samples=0), None))
            continue
        chosen = kind.chosen(store) if isinstance(kind, NamesGroup) else kind
        if chosen is not None:
            found.append(_fitted(store, declared if chosen == kind else as_code(chosen), chosen, units))
    return found


def natural_suggestion(store: Store, units: NDArray[np.int64] | None = None) -> Suggestion:
    """The natural kind of a store, in a size that fits it.

    Raises
    ------
    InputError
        If the store's family is not installed, or has no natural kind.
    """
    kind = default_kind(store)
    chosen = kind.chosen(store) if isinstance(kind, NamesGroup) else None
    found = _fitted(store, as_code(chosen or kind), chosen or kind, units)
    if chosen is None or chosen == kind:
        return found
    reach = found.reach if found.changed else replace(found.reach, problem="the store holds several windows")
    return replace(found, declared=as_code(kind), reach=reach)


def _fitted(store: Store, declared: str, kind: SampleKind, units: NDArray[np.int64] | None) -> Suggestion:
    reader = kind.bind(store, (), units)
    reach, samples, text = reach_of(reader), len(reader), declared
    if reach.fitting is not None and (not samples or (reach.beyond and not reach.padded)):
        kind, text = reach.fitting, as_code(reach.fitting)
        samples = len(kind.bind(store, (), units))
    return Suggestion(declared, kind, text, reach, samples)


def parse_kind(expression: str) -> SampleKind:
    """Parse an expression such as ``unistore.Patches(96)`` or ``Patches(96)``; no code is run.

    Raises
    ------
    InputError
        If it is not a kind of unistore, or its arguments are invalid.
    """
    cure = 'as in "Patches(96)" or "SparsePoints(\'lung\', max_points=2000)"'
    try:
        call = ast.parse(expression.removeprefix("unistore."), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in KINDS:
            raise ValueError("they are " + ", ".join(KINDS))
        made = getattr(unistore, ast.unparse(call.func))
        positional = [ast.literal_eval(each) for each in call.args]
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
        kind: SampleKind = made(*positional, **named)
    except (SyntaxError, ValueError, TypeError) as error:
        message = f"{expression} is not a kind of samples: {error}"
        raise InputError(Problem("samples", message, cure, "option")) from error
    return kind
