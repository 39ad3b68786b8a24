"""Code to copy: the command that converts sources, and Python that loads a store."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from unistore.converters.options import Option, declared
from unistore.converters.registry import find_family, get_family
from unistore.errors import InputError, printable
from unistore.remote.storage import local_path
from unistore.report.suggestions import natural_suggestion, suggestions
from unistore.store.reader import Store
from unistore.system.sizes import count_of


def convert_command(
    family: str,
    sources: Sequence[str],
    destination: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> str:
    """A quoted shell command, of a family and options as journals and stores record them.

    `more` are further words of the command line, put last.
    """
    paths = [f"./{path}" if path.startswith("-") else path for path in (*sources, destination)]
    words = ["unistore", "convert", family.replace("_", "-"), *paths]
    return shlex.join([*words, *_words(family, options), *more])


def format_options(family: str, options: Mapping[str, Any]) -> str:
    """Recorded options as words of the command line; those with their default value are left out."""
    return shlex.join(_words(family, options))


def _words(family: str, options: Mapping[str, Any]) -> list[str]:
    """Words of the family's own options, and of ``--codec`` and ``--split``, which every store records."""
    words, found = [], find_family(family)
    try:
        own = () if found is None else declared(found.part("options"))
    except InputError:  # the family's package cannot be imported
        own = ()
    for each in own:
        value = options.get(each.name)
        if value not in (None, [], {}, each.plain(each.default)):
            words += _option_words(each, value)
    if options.get("codec") not in (None, "auto"):
        words += ["--codec", str(options["codec"])]
    if split := options.get("split"):
        words += ["--split", ",".join(_pairs(split)) if isinstance(split, Mapping) else str(split)]
    if split_by := options.get("split_by"):
        words += ["--split-by", str(split_by)]
    return words


def _option_words(option: Option, value: Any) -> list[str]:
    if option.kind is bool:
        return [option.flag if value else option.negative]
    given = _pairs(value) if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    if option.form == "fixed":
        return [option.flag, *map(str, given)]
    return [word for each in given for word in (option.flag, str(each))]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


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
_WIDTH = 74
"""Of comments, without their indent: lines fit into 80 columns."""


def snippet(store: Store, splits: Mapping[str, int]) -> str:
    """Code that loads batches of the store's natural samples; empty if it has none or its family is unknown.

    Kinds whose sizes do not fit the store are given sizes that do. `splits` has the number of samples of each
    split; ``train`` is loaded, else the first one with samples.
    """
    nonempty = [name for name, count in splits.items() if count]
    if store.sample_count == 0 or (splits and not nonempty):
        return ""
    folder, units = local_path(store.path), None
    arguments = json.dumps(store.path if folder is None else str(folder.absolute()))  # quoted as in Python
    if nonempty:
        split = "train" if "train" in nonempty else nonempty[0]
        arguments += f", split={json.dumps(split)}"
        codes, names = store.splits()
        units = np.flatnonzero(codes == names.index(split))
    try:
        known, natural = get_family(store.family), natural_suggestion(store, units)
    except InputError:
        return ""
    if not natural.samples or natural.kind is None:
        return ""
    if natural.changed:
        arguments += f", samples={natural.text}"
    others = [each for each in suggestions(store, units) if each.samples != 0 and each.kind != natural.kind]
    keys = ", ".join(("index", *natural.kind.select(store, None)))
    about = printable(f"{count_of(natural.samples, 'sample')}; each has: {keys}")
    return _TEMPLATE.format(
        arguments=arguments,
        about="\n    # ".join(textwrap.wrap(about, _WIDTH, break_on_hyphens=False)),
        others="".join(f"\n    # or: samples={other.text}" for other in others),
        batch=known.batch_size,
    )
