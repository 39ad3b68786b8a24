"""Check the values of a store: the rules that every store has, and how the rules of a family run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import numpy as np

from unistore.conversion.executors.local import Executor, parallel_map
from unistore.errors import InputError, Problem, RunCommand, StoreError, UnsupportedError
from unistore.schemas.array_specs import SOURCE_BOUNDS, offsets_errors
from unistore.schemas.indices import RowsOfSources, whole
from unistore.schemas.rules import Rule, RuleView, UnreadableError, broken
from unistore.schemas.tables import offsets_of, text_values
from unistore.store.names import STATISTICS
from unistore.store.reader import Store
from unistore.system.progress import NO_PROGRESS, Progress


def indices(view: RuleView) -> Iterator[Problem]:
    """Check that offsets, codes and extents stay inside the arrays that they index, and text is UTF-8."""
    for path in view.store.paths():
        spec = view.spec(path)
        if spec.bounds_values:
            yield from (broken(path, error) for error in spec.value_errors(view.whole(path), view.shape))
    for path in view.store.specs.texts():
        yield from _not_text(view, f"{path}/data")


def _not_text(view: RuleView, path: str) -> Iterator[Problem]:
    # Nothing if offsets are wrong, which `indices` reports
    values = view.whole(path)
    offsets = view.whole(f"{path.removesuffix('/data')}/offsets")
    if any(offsets_errors(offsets, len(values), "")):
        return
    try:
        text_values(values, offsets)
    except UnicodeDecodeError as error:
        yield broken(path, f"is not UTF-8: {error}")


def sources(view: RuleView) -> Iterator[Problem]:
    """Check that numbers of sources agree with the offsets that divide rows by source."""
    store = view.store
    rows = RowsOfSources(store)
    is_complete = True
    for path in store.paths():
        rule = view.spec(path)
        message = "assigns other rows to the sources than the offsets of their table do"
        try:
            if rule.indexes == (SOURCE_BOUNDS, -1):
                counts = rows.of(path)
                expected = np.repeat(np.arange(len(counts)), counts)
                is_right = np.array_equal(whole(store, path), expected)
            elif rule.divides is not None and path != SOURCE_BOUNDS:
                divided = np.diff(whole(store, path)[offsets_of(rows.of(path))])
                is_right = np.array_equal(divided, rows.of(rule.divides))
            else:
                continue
            if not is_right:
                yield broken(path, message)
        except InputError:  # ranges that may hold several sources
            continue
        except (
            StoreError,
            UnreadableError,
            UnsupportedError,
            IndexError,
        ):  # reported by `indices`, or as damage
            is_complete = False
    if not is_complete:
        raise UnreadableError("sources")


def splits(view: RuleView) -> Iterator[Problem]:
    """Check that there is one split code per sample, and a name for every code."""
    try:
        names = view.store.split_names()
    except StoreError as error:
        yield broken("splits", str(error))
        return
    (count,) = view.shape("splits/code")
    if count != view.store.sample_count:
        yield broken("splits/code", f"has {count:,} rows, but there are {view.store.sample_count:,} samples")
    most = max((int(codes.max()) for _, codes in view.blocks("splits/code")), default=0)
    if most >= max(1, len(names)):
        yield broken("splits/code", f"contains the code {most}, but there are only {len(names)} names")


def statistics(view: RuleView) -> Iterator[Problem]:
    """Check that stored statistics describe the values of the store."""
    from unistore.data.statistics import kept_problem

    store = cast("Store", view.store)
    if store.storage.size(STATISTICS) is None:
        return
    for path in view.store.paths():
        view.array(path)
    try:
        problem = kept_problem(store)
    except InputError as error:  # nothing installed says what the samples are
        raise UnreadableError(STATISTICS) from error
    if problem is not None:
        yield Problem(STATISTICS, problem, RunCommand(("statistics", store.path)), "statistics")


RULES: tuple[Rule, ...] = (indices, sources, splits, statistics)


def run_rules(
    view: RuleView, rules: Sequence[Rule], executor: Executor, progress: Progress = NO_PROGRESS
) -> tuple[list[Problem], list[str]]:
    """Return problems of all rules, and the names of rules that damaged arrays left unchecked."""
    problems: list[Problem] = []
    unchecked: list[str] = []
    ask = parallel_map(executor, progress, "checking values")
    answers = ask(partial(_problems_of, view), rules)
    for rule, (of_rule, is_complete) in zip(rules, answers, strict=True):
        problems += of_rule
        unchecked += [] if is_complete else [rule.__name__]
    return problems, unchecked


def _problems_of(view: RuleView, rule: Rule) -> tuple[list[Problem], bool]:
    problems: list[Problem] = []
    try:
        problems.extend(rule(view))
    except UnreadableError:
        return problems, False
    return problems, True
