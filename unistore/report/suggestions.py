"""Kinds of samples that go with a store: its natural one and those its family suggests, in sizes that fit."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unistore.converters.registry import get_family
from unistore.data import kinds
from unistore.data.kinds.protocol import NamesGroup, SampleKind
from unistore.data.kinds.reach import Reach, as_code, reach_of
from unistore.data.parts import default_kind
from unistore.errors import InputError, Problem
from unistore.store.reader import Store

__all__ = ["Suggestion", "kind_from", "natural_suggestion", "suggestions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A kind of samples for one store.

    Attributes
    ----------
    said
        As its family has it, as Python code.
    kind, text
        As it goes with the store, and as Python code. A kind of another package is not looked at: None, and
        the text as its family has it.
    reach
        How the kind goes with the store as its family has it.
    samples
        How many there are of the kind that goes with the store; of another package's: None.
    """

    said: str
    kind: SampleKind | None
    text: str
    reach: Reach
    samples: int | None

    @property
    def changed(self) -> bool:
        """Whether the kind does not go with the store as its family has it."""
        return self.text != self.said


def suggestions(store: Store, units: NDArray[np.int64] | None = None) -> list[Suggestion]:
    """Kinds that the family of a store suggests, its natural kind apart.

    Parameters
    ----------
    store
        The store.
    units
        Rows of the sample table that are used; None: all.

    Raises
    ------
    InputError
        If the store's family is not known here.
    """
    found = []
    for said in get_family(store.family).other_kinds:
        try:
            kind = kind_from(said)
        except InputError:  # of another package
            found.append(Suggestion(said=said, kind=None, text=said, reach=Reach(samples=0), samples=None))
        else:
            chosen = kind.chosen(store) if isinstance(kind, NamesGroup) else kind
            if chosen is not None:
                text = said if chosen == kind else as_code(chosen)
                found.append(_looked_at(store, text, chosen, units))
    return found


def natural_suggestion(store: Store, units: NDArray[np.int64] | None = None) -> Suggestion:
    """The natural kind of a store, in a size that goes with it.

    Raises
    ------
    InputError
        If the store's family is not known here, or has no such kind.
    """
    kind = default_kind(store)
    chosen = kind.chosen(store) if isinstance(kind, NamesGroup) else None
    if chosen is None or chosen == kind:
        return _looked_at(store, as_code(kind), kind, units)
    found = _looked_at(store, as_code(chosen), chosen, units)
    reach = found.reach if found.changed else replace(found.reach, what="the store holds several windows")
    return replace(found, said=as_code(kind), reach=reach)


def _looked_at(store: Store, said: str, kind: SampleKind, units: NDArray[np.int64] | None) -> Suggestion:
    reader = kind.bind(store, (), units)
    reach, samples, text = reach_of(reader), len(reader), said
    if reach.fitting is not None and (not samples or (reach.beyond and not reach.told)):
        kind, text = reach.fitting, as_code(reach.fitting)
        samples = len(kind.bind(store, (), units))
    return Suggestion(said=said, kind=kind, text=text, reach=reach, samples=samples)


def kind_from(expression: str) -> SampleKind:
    """The kind that an expression like ``unistore.Patches(96)`` or ``Patches(96)`` makes; nothing is run.

    Raises
    ------
    InputError
        It is not one of ours, or its arguments do not fit.
    """
    cure = 'as in "Patches(96)" or "SparsePoints(\'lung\', max_points=2000)"'
    try:
        call = ast.parse(expression.removeprefix("unistore."), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in kinds.__all__:
            raise ValueError("they are " + ", ".join(kinds.__all__))
        made = getattr(kinds, ast.unparse(call.func))
        positional = [ast.literal_eval(each) for each in call.args]
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
        kind: SampleKind = made(*positional, **named)
    except (SyntaxError, ValueError, TypeError) as error:
        message = f"{expression} is no kind of samples: {error}"
        raise InputError(Problem("samples", message, cure, "option")) from error
    return kind
