"""Keywords of `Dataset` and `Loader` that are options of the conversion of source files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from typing import Any

from unistore.conversion.settings import Settings
from unistore.converters.options import declared
from unistore.converters.registry import families
from unistore.data.dataset import Dataset
from unistore.errors import InputError


def check_keywords(caller: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise a TypeError if one of the names is no option of a conversion.

    Parameters
    ----------
    caller
        The method that was given keywords which are no arguments of its own, as ``Dataset.__init__``.
    names
        These keywords. Names of arguments of `Dataset` are refused, too: `Loader` has no such arguments, and
        its user means those.
    """
    of_dataset = inspect.signature(Dataset.__init__).parameters
    options = {"family", *(field.name for field in fields(Settings))}
    for family in families().values():
        with suppress(InputError):  # the options of a package that cannot be imported
            options.update(option.name for option in declared(family))
    title = caller.__qualname__.partition(".")[0]
    for name in names:
        if name in of_dataset:
            msg = f"{title}() has no argument {name!r}. Fix: write {title}(Dataset(path, {name}=…))"
            raise TypeError(msg)
        if name not in options:
            import difflib

            own = [argument for argument in inspect.signature(caller).parameters if argument != "self"]
            similar = difflib.get_close_matches(name, [*own, *options], 1)
            guess = f"Did you mean {similar[0]!r}? " if similar else ""
            msg = f"{title}() got an unexpected keyword argument {name!r}. {guess}"
            msg += "Options of unistore.convert are allowed, too; 'unistore convert --help' lists them"
            raise TypeError(msg)
