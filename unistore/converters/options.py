"""Options of a family, each declared once: a field of a frozen dataclass with its type, default and help.

::

    @dataclass(frozen=True, kw_only=True)
    class PingOptions(Options):
        gain: float = option(1.0, "Multiply echoes by this.")
        beams: tuple[int, ...] = option((), "Store these beams only.")
        layout: Literal["auto", "raw"] = option("auto", "How samples are packed.")

From these fields follow the flags of the command line with their help, the keyword arguments of
`unistore.convert`, the options that a store records, and the commands that ``inspect`` prints. The family
inherits the class.

==============================  ===========================  ============================
annotation                      on the command line          in Python
==============================  ===========================  ============================
``bool``                        ``--flip`` or ``--no-flip``  ``flip=False``
``int``, ``float``, ``str``     ``--height 250``             ``height=250``
``Literal["a", "b"]``           one of the words             ``layout="raw"``
``tuple[X, ...]``               ``--beams 1 --beams 2``      ``beams=(1, 2)`` or ``beams=1``
``tuple[int, int]``             ``--tile 4 8``               ``tile=(4, 8)``
``Mapping[str, str]``           ``--map x=East``             ``map={"x": "East"}``
``X | None``                    None unless given            ``height=None``
==============================  ===========================  ============================
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from unistore.errors import InputError, Problem
from unistore.system.arguments import Arguments, describe_type, matches_type

if TYPE_CHECKING:  # numpy takes a fifth of a second
    from unistore.converters.common.exclusion import Exclusion
    from unistore.converters.common.label_map import LabelMap
    from unistore.system.types import JsonObject

# What to do when sources have different columns: refuse, fill what is missing, take the common ones
Columns = Literal["exact", "union", "intersection"]
# Help of options that several families have
HELP = {
    "columns": "What to do with fields that only some files have. exact is an error, union fills in values, "
    "intersection leaves the field out.",
    "map": "Say which dataset holds a field that has another name. Example: --map x=cloud/East.",
}

# What a store records of its splits
SPLIT_OPTIONS = ("split", "split_by", "split_rule", "split_seed", "split_below", "split_from", "group_by")
_CONTENT = ("codec", *SPLIT_OPTIONS, "on_error", "follow_links_to")
_RUN = (
    *("overwrite", "append", "replace", "restart", "work", "workers", "memory", "scheduler"),
    *("part", "seal", "wait", "check", "log", "one_store_per_shape"),
)
_PRINTED = ("dry_run", "json", "as_json", "help", "debug", "progress")
_RECORDED = ("sources", "destination", "family", "found", "skipped")
# Names that no option of a family may have: those of every conversion, and of other recorded values
RESERVED = frozenset((*_CONTENT, *_RUN, *_PRINTED, *_RECORDED))

_DECLARED = "unistore option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A declared option of a family.

    Attributes
    ----------
    name : str
        Name in Python: ``"voxel_size"``.
    hint
        Its annotation.
    form : {"one", "several", "fixed", "mapping"}
        One value, several, a fixed number of values, or names with values.
    kind : type
        Type of one value: bool, int, float or str.
    length : int
        Number of values of the form ``"fixed"``.
    choices : tuple of str
        Allowed words. Empty: any value.
    default
        Default value.
    help : str
        Text of its help.
    group : str
        Title of its group in ``--help``. Empty: the group of the family.
    metavar : str or None
        Placeholder for the value in ``--help``. None: made from the name.
    least, most : float or None
        Limits of numbers, both included. None: no limit.
    is_late : bool
        Whether stores record it only if it is not the default.
    """

    name: str
    hint: Any
    form: Literal["one", "several", "fixed", "mapping"]
    kind: type
    length: int
    choices: tuple[str, ...]
    default: Any
    help: str
    group: str
    metavar: str | None
    least: float | None
    most: float | None
    is_late: bool

    @property
    def flag(self) -> str:
        """Flag on the command line: ``"--voxel-size"``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def negative(self) -> str:
        """Flag for False: ``"--no-flip"``."""
        return f"--no-{self.name.replace('_', '-')}"

    def normalized(self, value: Any) -> Any:
        """Return a value; a single value of an option that takes several becomes a tuple."""
        if self.form != "several" or value is None:
            return value
        return (value,) if isinstance(value, str | bytes) or not hasattr(value, "__iter__") else value

    def converted(self, value: Any) -> Any:
        """Return a valid value converted to the declared types."""
        if value is None:
            return None
        if self.form == "mapping":
            return dict(value)
        return self.kind(value) if self.form == "one" else tuple(map(self.kind, value))

    def plain(self, value: Any) -> Any:
        """Return a converted value as JSON."""
        return list(value) if isinstance(value, tuple) else value

    def is_within(self, value: Any) -> bool:
        """Return whether the numbers of a converted value are within the declared limits."""
        if value is None:
            return True
        numbers = value if isinstance(value, tuple) else (value,)
        is_large = self.least is None or all(number >= self.least for number in numbers)
        return is_large and (self.most is None or all(number <= self.most for number in numbers))

    @property
    def bounds(self) -> str:
        """The declared limits as text: ``"at least 1"``."""
        if self.most is None:
            return f"at least {self.least}"
        return f"at most {self.most}" if self.least is None else f"{self.least} to {self.most}"


def option(
    default: Any,
    help: str = "",
    *,
    group: str = "",
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    late: bool = False,
) -> Any:
    """Declare an option: the value of a dataclass field in a subclass of `Options`.

    Parameters
    ----------
    default
        Default value.
    help : str
        Sentences; the first one must be enough to understand the option. Optional for `columns` and
        `map`, whose help several families share.
    group : str, default ""
        Title of the group in ``--help``. Empty: the group of the family.
    metavar : str, optional
        Placeholder for the value in ``--help``: ``"window:SIZE"``. None: made from the name.
    least, most : float, optional
        Limits of numbers, both included. None: no limit.
    late : bool, default False
        Whether stores record the option only if it is not the default. Use it for an option that is added
        to a family with existing stores, so that these stay the same.

    Returns
    -------
    dataclasses.Field
        The value of the field.

    Examples
    --------
    >>> @dataclass(frozen=True, kw_only=True)  # doctest: +SKIP
    ... class PingOptions(Options):
    ...     gain: float = option(1.0, "Multiply echoes by this number.", least=0)
    """
    declared = {
        "help": help,
        "group": group,
        "metavar": metavar,
        "least": least,
        "most": most,
        "is_late": late,
    }
    metadata = {_DECLARED: declared}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of a family.

    All values are checked together and converted to the declared types. Extend ``__post_init__`` if
    options depend on each other.

    Attributes
    ----------
    exclude : tuple of str, default ()
        Names of files, folders or episodes to skip, as messages show them.

    Raises
    ------
    InputError
        If a value has the wrong type or is out of bounds. The problems name every such option.
    """

    exclude: tuple[str, ...] = option(
        (),
        "Leave out this file, folder or episode. Spell NAME as messages do. A name that matches "
        "nothing is an "
        "error.",
        group="Before you convert",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        check = Arguments()
        for declaration in declared(type(self)):
            value = declaration.normalized(getattr(self, declaration.name))
            if not check.expect(
                declaration.flag,
                value,
                matches_type(value, declaration.hint),
                describe_type(declaration.hint),
            ):
                continue
            value = declaration.converted(value)
            if check.expect(declaration.flag, value, declaration.is_within(value), declaration.bounds):
                object.__setattr__(self, declaration.name, value)
        check.raise_problems()

    def exclusion(self) -> Exclusion:
        """Return a new `Exclusion` of the names to skip."""
        from unistore.converters.common.exclusion import Exclusion

        return Exclusion(self.exclude)

    def recorded(self) -> JsonObject:
        """Return the options as JSON values, as stores record them. They can create the class again."""
        values = {}
        for declaration in declared(type(self)):
            value = getattr(self, declaration.name)
            if not declaration.is_late or value != declaration.default:
                values[declaration.name] = declaration.plain(value)
        return values


@dataclass(frozen=True, kw_only=True)
class LabelOptions(Options):
    """Base class of the options of a family whose files have labels.

    Attributes
    ----------
    label_map : str or None
        New numbers of labels, ``"1=2,3=1"``, or a JSON file. None: labels stay as in the files.
    ignore_label : int or None
        Label for values that the map does not name. None: such a value is an error.
    """

    label_map: str | None = option(
        None,
        "Renumber labels, for example 1=2,3=1. A JSON file can hold one map for each data set.",
        metavar="FILE|A=B,…",
        late=True,
    )
    ignore_label: int | None = option(
        None,
        "With --label-map: label for values that the map does not name. Without it they are an error.",
        metavar="NUMBER",
        late=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_map is not None or self.ignore_label is not None:
            from unistore.converters.common.label_map import checked_map

            object.__setattr__(self, "label_map", checked_map(self.label_map, self.ignore_label))

    @property
    def labels(self) -> LabelMap | None:
        """How labels are numbered in the store. None: as in the files."""
        return self.recorded_labels({"label_map": self.label_map, "ignore_label": self.ignore_label})

    @staticmethod
    def recorded_labels(options: Mapping[str, Any]) -> LabelMap | None:
        """Return how labels are numbered in a store with these recorded options. None: as in the files."""
        from unistore.converters.common.label_map import recorded_map

        return recorded_map(options)


def _read_declared(options: type[Options]) -> tuple[Option, ...]:
    """Return all options of a class, its own first, and those of every family last."""
    shared = {entry.name: entry for entry in fields(Options)}
    declarations = [entry for entry in fields(options) if _DECLARED in entry.metadata]
    bases = [vars(base).get("__annotations__", {}) for base in options.__mro__]

    def rank(name: str) -> tuple[bool, int]:
        return name in shared, next(number for number, base in enumerate(bases) if name in base)

    declarations.sort(key=lambda entry: rank(entry.name))
    clashes = [
        entry
        for entry in declarations
        if entry.name in RESERVED or entry is not shared.get(entry.name, entry)
    ]
    if clashes:
        where = f"{options.__module__}:{options.__qualname__}"
        package, _, _ = options.__module__.partition(".")
        fix = f"give it another name in the package {package}"
        problems = []
        for entry in clashes:
            flag = entry.name.replace("_", "-")
            message = f"declares --{flag}, the name of an option of every conversion"
            problems.append(Problem(where, message, fix, "family"))
        raise InputError(problems)
    silent = [entry.name for entry in declarations if not (_help_of(entry) or entry.name in HELP)]
    if silent:
        raise TypeError(
            f'{options.__name__}.{silent[0]}: an option needs help: option(default, "One sentence.")'
        )
    return tuple(
        Option(
            name=entry.name,
            hint=hint,
            **_form_of(hint, f"{options.__name__}.{entry.name}"),
            default=entry.default if entry.default_factory is MISSING else entry.default_factory(),
            **{**entry.metadata[_DECLARED], "help": _help_of(entry) or HELP[entry.name]},
        )
        for entry in declarations
        for hint in [_hint_of(options, entry.name)]
    )


def _help_of(entry: Field[Any]) -> str:
    """Return the help that an option declares, empty if it declares none."""
    declared_help: str = entry.metadata[_DECLARED]["help"]
    return declared_help


def _hint_of(options: type[Options], name: str) -> Any:
    """Return the annotation of an option. Others of its class, for types alone, are not evaluated."""
    owner = next(base for base in options.__mro__ if name in vars(base).get("__annotations__", {}))
    alone = type(owner.__name__, (), {"__annotations__": {name: owner.__annotations__[name]}})
    alone.__module__ = owner.__module__
    return get_type_hints(alone)[name]


# Kept, as every conversion asks all families
declared: Callable[[Any], tuple[Option, ...]] = cache(_read_declared)


def _form_of(hint: Any, where: str) -> JsonObject:
    origin = get_origin(hint)
    inner = get_args(hint)
    one = {"form": "one", "kind": hint, "length": 1, "choices": ()}
    if hint in (bool, int, float, str):
        return one
    if origin in (Union, types.UnionType) and len(inner) == 2 and types.NoneType in inner:
        return _form_of(next(variant for variant in inner if variant is not types.NoneType), where)
    if origin is Literal and all(isinstance(variant, str) for variant in inner):
        return {**one, "kind": str, "choices": inner}
    if origin is tuple and len(set(inner) - {Ellipsis}) == 1:
        of_one = _form_of(inner[0], where)
        if of_one["form"] == "one":
            form = "several" if Ellipsis in inner else "fixed"
            return {**of_one, "form": form, "length": len(inner)}
    if origin in (Mapping, dict) and inner == (str, str):
        return {**one, "form": "mapping", "kind": str}
    raise TypeError(
        f"{where}: an option cannot be {hint!r}; unistore.converters.options lists what it can be"
    )
