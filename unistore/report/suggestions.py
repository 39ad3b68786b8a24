"""Suggestions for a store or sources: fitting sample kinds, and code that converts or loads."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from unistore.conversion.split_rule import EXACT
from unistore.converters.options import Option, declared
from unistore.converters.registry import find_family
from unistore.data.default_kind import default_kind, natural_kind
from unistore.data.kinds.named import as_code, installed_kinds, leave_kind_out, parse_kind
from unistore.data.kinds.protocol import Reach, SampleKind
from unistore.errors import InputError, UnistoreError, printable
from unistore.remote.url import local_path
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores
from unistore.system.sizes import count_of
from unistore.system.types import Int64s

_TEMPLATE = """\
import unistore

if __name__ == "__main__":
    dataset = unistore.Dataset({arguments})
    # {about}{others}
    loader = unistore.Loader(dataset, batch_size={batch}, shuffle=True)
    for batch in loader:
        for key, value in batch.items():
            print(key, getattr(value, "shape", value))
        break
"""
# Of comments, without their indent: lines fit into 80 columns
_WIDTH = 74
_BATCH = 8  # samples of a store whose family is not installed


class Suggestion(NamedTuple):
    """A sample kind for one store.

    Attributes
    ----------
    declared : str
        The kind that the family declares, as Python code.
    kind : SampleKind
        The kind with sizes that fit the store.
    text : str
        `kind` as Python code.
    reach : Reach
        How the declared kind fits the store.
    samples : int
        Number of samples of `kind`.
    """

    declared: str
    kind: SampleKind
    text: str
    reach: Reach
    samples: int

    @property
    def changed(self) -> bool:
        return self.text != self.declared


def suggestions(store: Store, units: Int64s | None = None) -> list[Suggestion]:
    """Return the sample kinds that a store records, without the default one, and fitting ones of packages."""
    fitting = []
    for code in store.root.kinds[1:]:
        try:
            kind = parse_kind(code)
        except InputError:  # its package is not installed
            continue
        chosen = kind.chosen(store)
        if chosen is not None:
            fitting.append(_fitted(store, code if chosen == kind else as_code(chosen), chosen, units))
    return [*fitting, *_installed_suggestions(store, units)]


def _installed_suggestions(store: Store, units: Int64s | None) -> Iterator[Suggestion]:
    # A kind that fails is left out
    for kind in installed_kinds().values():
        options = fields(cast("Any", kind))
        if any(option.default is MISSING for option in options):  # nobody knows what to give
            continue
        try:
            chosen = kind()
            chosen.select(store, None)
            yield _fitted(store, as_code(chosen), chosen, units)
        except UnistoreError:  # the store has no such samples
            continue
        except Exception as error:  # noqa: BLE001  whatever a package raises, the others are suggested
            leave_kind_out(kind.__name__, f"{kind.__module__} failed: {type(error).__name__}: {error}")


def natural_suggestion(store: Store, units: Int64s | None = None) -> Suggestion:
    """Return the natural kind of a store, in a size that fits it."""
    kind = natural_kind(store)
    return _fitted(store, as_code(kind), kind, units)._replace(declared=as_code(default_kind(store)))


def misfits(store: Store, natural: Suggestion) -> Iterator[str]:
    """Iterate over notes about sample kinds that do not fit the store: why, and which sizes do."""
    other_kinds = [other for other in suggestions(store) if other.kind != natural.kind]
    for kind in (natural, *other_kinds):
        reach = kind.reach
        padded = "no samples"
        if reach.samples and reach.beyond:
            padded = f"{100 * reach.beyond / reach.samples:.3g} % of its samples would be padded"
        problem = reach.problem or "the store has several windows"
        if kind.changed:
            instead = f"{kind.text} fits this store"
            if kind is natural:
                instead = f"the default of a Dataset is {kind.text}"
            yield f"{kind.declared}: {padded} ({problem}); {instead}"


def _fitted(store: Store, declared: str, kind: SampleKind, units: Int64s | None) -> Suggestion:
    reader = kind.bind(store, (), units)
    reach = reader.reach()
    samples = len(reader)
    text = declared
    if reach.fitting is not None and (not samples or (reach.beyond and not reach.padded)):
        kind = reach.fitting
        text = as_code(reach.fitting)
        samples = len(kind.bind(store, (), units))
    return Suggestion(declared, kind, text, reach, samples)


def convert_command(
    family: str,
    sources: Sequence[str],
    destination: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> str:
    """Return a quoted shell command that converts sources.

    Parameters
    ----------
    family : str
        Name of the family. Empty: the command detects it.
    sources : sequence of str
        The sources.
    destination : str
        The store.
    options : mapping
        Options of the family, as journals and stores record them.
    more : sequence of str, default ()
        Words to add at the end.
    """
    paths = [f"./{path}" if path.startswith("-") else path for path in (*sources, destination)]
    command = [family.replace("_", "-")] if family else []
    words = ["unistore", "convert", *command, *paths]
    return shlex.join([*words, *_words(family, options), *more])


def format_options(family: str, options: Mapping[str, Any]) -> str:
    """Return recorded options as words of the command line, without options that have their default value."""
    return shlex.join(_words(family, options))


def _words(family: str, options: Mapping[str, Any]) -> list[str]:
    # With ``--codec`` and ``--split``, which every store records
    words = []
    record = find_family(family)
    try:
        own = () if record is None else declared(record)
    except InputError:  # the family's package cannot be imported
        own = ()
    for option in own:
        value = options.get(option.name)
        if value not in (None, [], {}, option.plain(option.default)):
            words += _option_words(option, value)
    if options.get("codec") not in (None, "auto"):
        words += ["--codec", str(options["codec"])]
    return [*words, *_split_words(options)]


def _split_words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    if split := options.get("split"):
        shares = ",".join(_pairs(split)) if isinstance(split, Mapping) else str(split)
        # stores that record no rule were made in the way that is now called exact
        words += ["--split", shares if options.get("split_rule") == "hash" else f"{EXACT}{shares}"]
    for name in ("split_by", "split_seed", "group_by"):
        if options.get(name):
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    if isinstance(origin := options.get("split_from"), Mapping):
        words += ["--split-from", str(origin.get("name"))]
    return words


def _option_words(option: Option, value: Any) -> list[str]:
    if option.kind is bool:
        return [option.flag if value else option.negative]
    values = _pairs(value) if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    if option.form == "fixed":
        return [option.flag, *map(str, values)]
    words = []
    for single in values:
        words += [option.flag, str(single)]
    return words


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def snippet(store: Store, splits: Mapping[str, int]) -> str:
    """Return code that loads batches of default samples of ``train``, or of the first split."""
    nonempty = [name for name, count in splits.items() if count]
    if store.sample_count == 0 or (splits and not nonempty):
        return ""
    folder = local_path(store.path)
    units = None
    arguments = json.dumps(store.path if folder is None else str(folder.absolute()))  # quoted as in Python
    if nonempty:
        split = "train" if "train" in nonempty else nonempty[0]
        arguments += f", split={json.dumps(split)}"
        codes, names = store.splits()
        units = np.flatnonzero(codes == names.index(split))
    return _loading(store, arguments, units)


def snippet_of_version(opened: OpenedStores, splits: Mapping[str, int], version: int | None) -> str:
    """Return code that loads batches of a grown store, with `version` unless that is None, the newest."""
    nonempty = [name for name, count in splits.items() if count]
    stores = [store for store, count in zip(opened.stores, opened.counts, strict=True) if count]
    if not stores or (splits and not nonempty):
        return ""
    folder = local_path(opened.path)
    arguments = json.dumps(opened.path if folder is None else str(folder.absolute()))
    if nonempty:
        arguments += f", split={json.dumps('train' if 'train' in nonempty else nonempty[0])}"
    if version is not None:
        arguments += f", version={version}"
    return _loading(stores[-1], arguments, None, is_part=True)


def _loading(store: Store, arguments: str, units: Int64s | None, *, is_part: bool = False) -> str:
    try:
        natural = natural_suggestion(store, units)
    except InputError:
        return ""
    if not natural.samples:
        return ""
    if natural.changed:
        arguments += f", samples={natural.text}"
    family = find_family(store.family)
    other_kinds = [
        suggestion
        for suggestion in suggestions(store, units)
        if suggestion.samples != 0 and suggestion.kind != natural.kind
    ]
    others = [other.text for other in other_kinds]
    others = [*map(as_code, natural.kind.with_precomputed(store)), *others]
    keys = ", ".join(("index", *natural.kind.select(store, None)))
    about = printable(f"{count_of(natural.samples, 'sample')}; each has: {keys}")
    if is_part:
        about = printable(f"each sample has: {keys}")
    return _TEMPLATE.format(
        arguments=arguments,
        about="\n    # ".join(textwrap.wrap(about, _WIDTH, break_on_hyphens=False)),
        others="".join(f"\n    # or: samples={text}" for text in others),
        batch=_BATCH if family is None else family.batch_size,
    )
