"""`derive`: compute from a store what a conversion would have precomputed, as added columns."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from unistore.conversion.sealing import IndexArrays
from unistore.converters.family import Family
from unistore.converters.options import declared
from unistore.converters.protocol import Finalized
from unistore.converters.registry import family_of
from unistore.errors import InputError, Problem
from unistore.progress import resolve_progress
from unistore.side.writing import Spool, new_side_table, write_side_table
from unistore.store.reader import Store
from unistore.store.side_tables import SideTable, folders_beside, is_folder_of, read_side_table, side_names
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.progress import Progress, ProgressLike
from unistore.system.types import AnyArray, JsonObject, PathLike


def derive(
    store: PathLike,
    *,
    overwrite: bool = False,
    progress: ProgressLike = None,
    **options: Any,
) -> tuple[SideTable, ...]:
    """Compute from a store what a conversion with these options would have precomputed.

    The sources are not needed. Every Dataset of the store then reads the result as if the store had been
    converted with these options: the arrays have the same values. The files of the store do not change;
    each value of an option is stored in a folder next to it, with a seal of its own. Results that exist
    for the store in its current state are kept.

    Parameters
    ----------
    store : path
        Folder of the store.
    overwrite : bool, default False
        Compute existing results again.
    progress : optional
        As in `unistore.convert`: one stage for each value of an option.
    **options
        Options of the conversion: ``voxel_size=0.2`` for point clouds, ``window="lung"`` for CT volumes,
        or several values, ``voxel_size=(0.1, 0.2)``. ``values="hu"`` as in `unistore.convert`.

    Returns
    -------
    tuple of SideTable
        One for each value of each option.

    Raises
    ------
    InputError
        If an option cannot be derived for this family, its value is invalid, or the store already has the
        result.
    StoreError
        If there is no finished store at `store`.
    ConversionError
        If writing failed, or another process computes the same result.

    Examples
    --------
    >>> tables = unistore.derive("clouds.zarr", voxel_size=(0.1, 0.2))  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store)
    check.flag("overwrite", overwrite)
    check.expect("options", options, bool(options), "at least one option, such as voxel_size=0.2")
    check.raise_problems()
    opened = Store(store)
    family = family_of(opened.root)
    _check_options(opened, family, options)
    given = family(**options)
    made: list[SideTable] = []
    makers = [option for option in options if option in family.derives]
    with resolve_progress(progress) as callbacks:
        for option in makers:
            make = partial(_derive_one, opened, given, option, overwrite=overwrite, progress=callbacks)
            made += map(make, getattr(given, option))
    return tuple(made)


def _check_options(store: Store, family: type[Family], options: JsonObject) -> None:
    of_conversion = [option.name for option in declared(family)]
    possible = [name.replace("_", "-") for name in family.derives]
    problems = []
    for option in options:
        if option not in (*family.derives, *family.derive_options):
            flag = option.replace("_", "-")
            message = f"--{flag} cannot be computed from a {family.command()} store"
            fixes = []
            if option in of_conversion:
                fixes.append(f"convert its sources again with --{flag}")
            if possible:
                fixes.append(f"use --{', --'.join(possible)} instead")
            problems.append(Problem(store.path, message, tuple(fixes), "option"))
    if family.derives and not set(family.derives) & options.keys():
        problems.append(
            Problem(store.path, "no option was given", f"give --{', --'.join(possible)}", "option")
        )
    if problems:
        raise InputError(problems)


def _derive_one(
    store: Store,
    given: Family,
    option: str,
    value: Any,
    *,
    overwrite: bool,
    progress: Progress,
) -> SideTable:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{option}-{value}")
    exists = name in side_names(store)
    if exists and not overwrite and read_side_table(store, name).is_of(store):
        return read_side_table(store, name)
    with new_side_table(store, name, overwrite=exists) as folder, ExitStack() as spools:
        columns: dict[tuple[str, str], Spool] = {}

        def emit(table: str, column: str, rows: AnyArray) -> None:
            if (table, column) not in columns:
                spool = Spool(folder)
                spools.callback(spool.close)
                columns[table, column] = spool
            columns[table, column].append(rows)

        finalized = given.derive_from(option, value, store, emit, folder, progress)
        arrays = [*finalized.arrays, *_emitted(finalized, columns)]
        others = Store(store.path, beside=_without(folders_beside(store, ()), name))
        for field, _ in arrays:
            if others.has(field.path):
                message = f"{store.path} has {field.path} of {value} already"
                raise wrong_argument(option, message, "remove it")
        write_side_table(folder, store, arrays, table="", groups=finalized.groups)
        beside = Store(store.path, beside=[folder])
        for field, _ in arrays:
            beside.array(field.path)
    return read_side_table(store, name)


def _emitted(finalized: Finalized, columns: dict[tuple[str, str], Spool]) -> IndexArrays:
    arrays = []
    for table in finalized.spilled:
        for column, field in table.columns().items():
            arrays.append((field, columns[table.name, column].values()))
    return arrays


def _without(folders: tuple[str, ...], name: str) -> list[str]:
    return [folder for folder in folders if not is_folder_of(name, Path(folder).name)]
