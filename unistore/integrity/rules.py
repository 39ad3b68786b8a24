"""Value rules of every store (offsets, text, sources, splits), and running rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unistore.conversion.executors.asking import run_in_order
from unistore.conversion.executors.local import Executor, Outcome
from unistore.errors import Problem, StoreError
from unistore.schemas.array_spec import offsets_errors
from unistore.schemas.indices import table_columns
from unistore.schemas.rules import Rule, UnreadableError, View, broken, first_row
from unistore.schemas.tables import text_values


def indices(view: View) -> Iterator[Problem]:
    """Offsets, codes and extents stay within the arrays that they index; text is UTF-8."""
    for path in view.store.paths():
        spec = view.spec(path)
        if spec.bounds_values:
            yield from (broken(path, error) for error in spec.value_errors(view.whole(path), view.shape))
    for path in view.store.paths():
        if view.store.specs.is_text(path, view.store.paths()):
            yield from _not_text(view, path)


def _not_text(view: View, path: str) -> Iterator[Problem]:
    """Text that is not UTF-8; nothing if its offsets are wrong, which `indices` reports."""
    values, offsets = view.whole(path), view.whole(f"{path.removesuffix('/data')}/offsets")
    if any(offsets_errors(offsets, len(values), "")):
        return
    try:
        text_values(values, offsets)
    except UnicodeDecodeError as error:
        yield broken(path, f"is not UTF-8 ({error})")


def sources(view: View) -> Iterator[Problem]:
    """The rows of the sources follow each other and are all rows of the main table."""
    rows, first = view.whole("sources/rows"), view.whole("sources/first_row")
    wrong = first != np.cumsum(rows) - rows
    if wrong.any():
        at = first_row(wrong)
        yield broken("sources/first_row", f"source {at} begins at {first[at]}, not where others end")
    main = view.store.attributes.get("main_table", "")
    lengths = {view.shape(path)[0] for path in table_columns(view.store, main)}
    if lengths and int(rows.sum()) not in lengths:
        found = min(lengths)
        yield broken("sources/rows", f"sums up to {int(rows.sum())}, but table {main} has {found} rows")


def splits(view: View) -> Iterator[Problem]:
    """Splits have one code per sample, and every code a name."""
    try:
        names = view.store.split_names()
    except StoreError as error:
        yield broken("splits", str(error))
        return
    (count,) = view.shape("splits/code")
    if count != view.store.sample_count:
        yield broken("splits/code", f"has {count} rows, but there are {view.store.sample_count} samples")
    most = max((int(codes.max()) for _, codes in view.blocks("splits/code")), default=0)
    if most >= max(1, len(names)):
        yield broken("splits/code", f"holds code {most}, but there are {len(names)} names")


RULES: tuple[Rule, ...] = (indices, sources, splits)


def run_rules(view: View, rules: Sequence[Rule], executor: Executor) -> tuple[list[Problem], list[str]]:
    """Problems of all rules, and the names of rules that could not be checked as arrays are damaged."""
    outcomes = [outcome for _, outcome in run_in_order(executor, _RuleStep(view), rules)]
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    return problems, [rule for outcome in outcomes for rule in outcome.record["unchecked"]]


@dataclass(frozen=True, slots=True)
class _RuleStep:
    view: View

    def __call__(self, rule: Rule) -> Outcome:
        problems: list[Problem] = []
        try:
            problems.extend(rule(self.view))
        except UnreadableError:
            return Outcome({"unchecked": [rule.__name__]}, tuple(problems))
        return Outcome({"unchecked": []}, tuple(problems))

    def describe(self, rule: Rule) -> str:
        return f"{self.view.store.path}: the rule {rule.__name__!r}"
