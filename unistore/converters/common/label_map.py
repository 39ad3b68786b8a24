"""Number the labels of datasets alike: the options ``label_map`` and ``ignore_label``."""

# A map is "1=2,3=1", for all datasets, or JSON in a file, with keys `datasets` (labels by folder that label
# files lie in, * for all others) and `classes`. 0 stays 0 unless a map says otherwise. A label that no map
# says is refused, or becomes `ignore_label`: kept as it is, it might be taken for another dataset's class of
# that number.

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unistore.errors import AddOptions, InputError, Problem, first_few

if TYPE_CHECKING:  # options are read without NumPy
    import numpy as np
    from numpy.typing import NDArray

_PAIRS = re.compile(r"-?\d+=-?\d+(,-?\d+=-?\d+)*")
_PAIR = re.compile(r"(-?\d+)=(-?\d+)")
_OTHERS = "*"
# Labels that a map may span, from the smallest to the largest
_WIDEST = 1 << 20


class Numbering(NamedTuple):
    """Stored numbers of the labels of one dataset."""

    numbers: tuple[tuple[int, int], ...]  # in the file, and in the store
    ignored: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest dtype of all stored numbers."""
        import numpy as np

        stored = [number for _, number in self.numbers]
        if self.ignored is not None:
            stored.append(self.ignored)
        return np.result_type(np.min_scalar_type(min(stored)), np.min_scalar_type(max(stored)))

    def stored(self, labels: NDArray[Any], location: str) -> NDArray[Any]:
        """Return the stored numbers of labels, or raise an `InputError` for one that is not mapped."""
        import numpy as np

        if labels.dtype.kind not in "biu":
            message = f"has labels of the dtype {labels.dtype}, but --label-map needs whole numbers"
            raise InputError(Problem(location, message, "save the labels as integers", "dtype"))
        lowest = self.numbers[0][0] - 1
        highest = self.numbers[-1][0] + 1
        table = np.full(highest - lowest + 1, 0 if self.ignored is None else self.ignored, self.dtype)
        is_known = np.full(len(table), self.ignored is not None)
        for number, stored in self.numbers:
            table[number - lowest] = stored
            is_known[number - lowest] = True
        places = np.clip(labels.astype(np.int64), lowest, highest) - lowest
        if not is_known.all() and not is_known[places].all():
            unnamed = np.unique(labels[~is_known[places]]).tolist()
            shown = first_few(list(map(str, unnamed)), 5)
            message = f"label {shown} is not in --label-map"
            if len(unnamed) > 1:
                message = f"labels {shown} are not in --label-map"
            fix = (
                f"add {unnamed[0]}=…",
                AddOptions(("--ignore-label", "255"), "for all labels that are not in the map"),
            )
            raise InputError(Problem(location, message, fix, "label"))
        return table[places]


class LabelMap:
    """The maps of all datasets, and what the stored numbers are called."""

    def __init__(self, text: str, ignored: int | None) -> None:
        document = json.loads(text)
        self._datasets: dict[str, Numbering] = {}
        for dataset, numbers in document["datasets"].items():
            by_label = {0: 0} | {int(number): stored for number, stored in numbers.items()}
            self._datasets[dataset] = Numbering(tuple(sorted(by_label.items())), ignored)
        self.classes: Mapping[str, str] = document["classes"]

    def numbering(self, path: Path, location: str) -> Numbering:
        """Return the numbering of the dataset that a file is of: of the innermost folder that has a map."""
        for folder in reversed(path.parts[:-1]):
            if folder in self._datasets:
                return self._datasets[folder]
        if _OTHERS in self._datasets:
            return self._datasets[_OTHERS]
        names = first_few(list(self._datasets), 5)
        message = f"is not in one of the folders in --label-map, which are {names}"
        fix = f'add the folder of its data set, or "{_OTHERS}" for all others'
        raise InputError(Problem(location, message, fix, "label"))

    def check_used(self, paths: Sequence[Path]) -> None:
        """Refuse a map of a dataset of which no label file is there."""
        folders = {_OTHERS} | set(chain.from_iterable(path.parts[:-1] for path in paths))
        absent = [dataset for dataset in self._datasets if dataset not in folders]
        message = "no label file is in a folder of this name"
        fix = "give the name of a folder that contains label files"
        if absent or not paths:
            datasets = absent or ["*"]
            raise InputError([Problem(f"--label-map {name}", message, fix, "option") for name in datasets])

    def called(self, numbering: Numbering, classes: Mapping[str, str]) -> dict[str, str]:
        """Return the names of stored numbers, given those of a dataset's own. The map's come first."""
        if self.classes:
            return dict(self.classes)
        names: dict[str, list[str]] = {}
        stored = dict(numbering.numbers)
        for number, name in classes.items():
            if int(number) in stored:
                names.setdefault(str(stored[int(number)]), []).append(name)
        return {number: ", ".join(several) for number, several in names.items()}


def recorded_map(options: Mapping[str, Any]) -> LabelMap | None:
    """Return the label map of recorded options (None: labels are numbered as in the files)."""
    text = options.get("label_map")
    return None if text is None else LabelMap(text, options.get("ignore_label"))


def checked_map(text: str | None, ignored: int | None) -> str | None:
    """Check both options, and return the map whole."""
    if text is None and ignored is not None:
        message = "has no effect without --label-map"
        raise InputError(Problem("--ignore-label", message, "add --label-map, or remove it", "option"))
    return None if text is None else _whole(text)


def _whole(text: str) -> str:
    """Return what a label map says, whole, as JSON."""
    # A store records it whole: a file that the user named may be gone later.
    where = f"--label-map {text[:60]}"
    if _PAIRS.fullmatch(text):
        text = "{" + _PAIR.sub(lambda pair: f'"{pair[1]}": {int(pair[2])}', text) + "}"
    elif not text.startswith("{"):
        path = Path(text)
        if not path.is_file():
            message = "is not a list of pairs, such as 1=2,3=1, and no file of this name exists"
            raise InputError(Problem(where, message, "check the path", "option"))
        text = path.read_text("utf-8", "replace")
    try:
        document: Any = json.loads(text, object_pairs_hook=partial(_once, where=where))
    except ValueError as error:
        message = f"is not valid JSON: {error}"
        raise InputError(Problem(where, message, "correct the file", "option")) from error
    if isinstance(document, dict) and "datasets" not in document:
        document = {"datasets": {_OTHERS: document}}
    checked: dict[str, Any] = {"datasets": {}, "classes": {}}
    if isinstance(document, dict):
        checked |= document
    if len(checked) > 2 or not _is_valid(checked):
        fix = 'write it as {"datasets": {"FOLDER": {"1": 2}}, "classes": {"2": "liver"}}'
        raise InputError(Problem(where, "is not a label map", fix, "option"))
    return json.dumps(checked, ensure_ascii=False)


def _once(pairs: Sequence[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return pairs by their keys, of which none may stand twice."""
    mapping = dict(pairs)
    numbers = {int(key) if _is_number(key) else key for key in mapping}
    if len(numbers) < len(pairs):
        raise InputError(Problem(where, "contains a label twice", "remove one of the two", "option"))
    return mapping


def _is_valid(document: Mapping[str, Any]) -> bool:
    """Return whether maps are of whole numbers that lie together, and names are texts."""
    datasets = document["datasets"]
    classes = document["classes"]
    if not isinstance(datasets, dict) or not datasets or not isinstance(classes, dict):
        return False
    if not all(_is_number(number) and isinstance(name, str) for number, name in classes.items()):
        return False
    return all(map(_is_map, datasets.values()))


def _is_map(numbers: object) -> bool:
    if not isinstance(numbers, dict) or not all(map(_is_number, numbers)):
        return False
    if not all(type(stored) is int and abs(stored) < 1 << 31 for stored in numbers.values()):
        return False
    numbers_with_zero = [0, *map(int, numbers)]
    return max(numbers_with_zero) - min(numbers_with_zero) < _WIDEST


def _is_number(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"-?\d{1,10}", text) is not None
