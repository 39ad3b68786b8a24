"""Which files are labels of which images, by their names alone.

Labels are called after their image (``img0_seg`` beside ``img0``, ``a_mask_1`` beside ``a``), like it but for
a word (``seg0`` beside ``img0``, ``segmentation-3`` beside ``volume-3``, ``a_seg_1`` beside ``a_1``), or lie
under its name in a folder of labels beside that of the images (``labelsTr/case`` and ``imagesTr/case_0000``)
or beside the images themselves (``masks/a`` and ``a``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Owners", "label_name", "labels_of", "owners_of", "row_labels_of"]

_LABELS = {
    "seg": "seg",
    "segs": "seg",
    "segmentation": "seg",
    "segmentations": "seg",
    "mask": "mask",
    "masks": "mask",
    "label": "label",
    "labels": "label",
    "lbl": "label",
    "gt": "label",
    "organs": "organs",
}
"""What the word in a name is called as a field."""
_IMAGES = ("image", "images", "img", "imgs", "imaging", "data", "volume", "volumes", "vol", "scan", "scans")
_MODALITIES = ("t1", "t1ce", "t1gd", "t1c", "t1n", "t2", "t2w", "t2f", "flair")
_CHANNELS = (
    *(f"_{number:04d}" for number in range(10)),
    *(f"{by}{each}" for by in "_-" for each in _MODALITIES),
)
"""Endings of an image's channels where each is a file: ``case_0000`` of nnU-Net, ``case_t1`` of BraTS."""
_WORD = "|".join(sorted(_LABELS, key=len, reverse=True))
_SUFFIX = re.compile(rf"(?P<base>.*[^-_. ])[-_. ](?P<word>{_WORD})", re.IGNORECASE)
_PREFIX = re.compile(rf"(?P<word>{_WORD})(?P<rest>|[-_. ]?\d.*|[-_. ].+)", re.IGNORECASE)
_FOLDER = re.compile(rf"(?P<word>{_WORD})(?P<rest>|Tr|Ts|[-_. ].+)", re.IGNORECASE)
_INSIDE = re.compile(rf"(?P<base>.*[^-_. ])(?P<by>[-_. ])(?P<word>{_WORD})(?P<rest>[-_. ].+)", re.IGNORECASE)
_CHANNEL = re.compile(rf"(?P<base>.+)(_\d{{4}}|[-_]({'|'.join(_MODALITIES)}))")
_NUMBER = re.compile(r"(?P<base>.*?)(?P<number>[-_. ]?\d+)?")
_ROW_LABELS = ("label", "labels", "y", "Y", "target", "targets", "class", "classes")


@dataclass(frozen=True, slots=True)
class Owners:
    """The images of a label.

    Attributes
    ----------
    name
        What the label is called as a field: ``"seg"``, ``"mask"`` or ``"label"``.
    images
        Their paths without ending; several where an image has a file for each channel.
    certain
        Whether no other data are named so: ``img0_seg``, ``labelsTr``; but ``image`` and ``label`` may be
        any two arrays.
    """

    name: str
    images: tuple[Path, ...]
    certain: bool


def owners_of(label: Path, there: Callable[[Path], bool], words: Sequence[str] = ()) -> Owners | None:
    """Images that a file is the label of; None if its name does not say so, or none is there.

    Parameters
    ----------
    label
        Its path without ending.
    there
        Whether there is a file of a path without ending.
    words
        What images and their folders may be called besides.
    """
    for found in _rules(label, (*_IMAGES, *words)):
        images = tuple(dict.fromkeys(image for image in found.images if image != label and there(image)))
        if images:
            return Owners(found.name, images, found.certain)
    return None


def _rules(label: Path, words: Sequence[str]) -> Iterator[Owners]:
    """Where the images of a label would be, the likeliest first: one each, or the channels of one."""
    folder = label.parent
    yield from _named(folder, label.name, words)
    for images, name, certain in _folders(folder, words):
        yield from _each(images, (label.name,), name, certain=certain)
        for found in _named(images, label.name, words):
            yield Owners(found.name, found.images, found.certain or certain)


def _named(folder: Path, stem: str, words: Sequence[str]) -> Iterator[Owners]:
    """Images in a folder whose names are like that of a label but for its word."""
    if (suffix := _SUFFIX.fullmatch(stem)) is not None:
        base, name = suffix["base"], _LABELS[suffix["word"].lower()]
        own = (base, *(f"{base}{stem[len(base)]}{word}" for word in words))
        yield from _each(folder, own, name, certain=True)
    if (inside := _INSIDE.fullmatch(stem)) is not None:
        base, by, rest, name = inside["base"], inside["by"], inside["rest"], _LABELS[inside["word"].lower()]
        others = [f"{base}{by}{word}" for word in words]
        yield from _each(folder, [f"{each}{rest}" for each in (base, *others)], name, certain=False)
        yield from _each(folder, [base, *others], f"{name}_{rest[1:]}", certain=False)
    if (prefix := _PREFIX.fullmatch(stem)) is not None:
        word, rest = prefix["word"].lower(), prefix["rest"]
        certain = bool(rest) and word.startswith("seg")
        yield from _each(folder, [f"{each}{rest}" for each in words], _LABELS[word], certain=certain)
        if rest and not rest.strip("-_. ").isdigit():
            yield from _each(folder, (rest.lstrip("-_. "),), _LABELS[word], certain=True)


def _each(folder: Path, stems: Sequence[str], name: str, *, certain: bool) -> Iterator[Owners]:
    """Images of some names, or the channels of one."""
    for stem in stems:
        yield Owners(name, (folder / stem,), certain)
        yield Owners(name, tuple(folder / f"{stem}{each}" for each in _CHANNELS), certain)


def _folders(folder: Path, words: Sequence[str]) -> Iterator[tuple[Path, str, bool]]:
    """Where the images of a folder of labels are, what the labels are called, and whether that is certain."""
    match = _FOLDER.fullmatch(folder.name)
    if match is not None:
        name, rest = _LABELS[match["word"].lower()], match["rest"]
        for word in words:
            yield folder.parent / f"{word}{rest}", name, rest in ("Tr", "Ts")
        if not rest:
            yield folder.parent, name, True
        return
    above = _FOLDER.fullmatch(folder.parent.name)  # labels/train beside images/train
    if above is not None:
        for word in words:
            images = folder.parent.parent / f"{word}{above['rest']}" / folder.name
            yield images, _LABELS[above["word"].lower()], False


def labels_of(image: Path, words: Sequence[str] = ()) -> Iterator[Path]:
    """Paths without ending at which a label of an image may be: `owners_of` tells whether it is one."""
    folder, stem = image.parent, image.name
    channel = _CHANNEL.fullmatch(stem)
    stems = (stem,) if channel is None else (stem, channel["base"])
    words = sorted((*_IMAGES, *words), key=len, reverse=True)
    word = next((word for word in words if stem.lower().startswith(word)), "")
    for each in stems:
        for label in _LABELS:
            yield from (folder / f"{each}{separator}{label}" for separator in "_-")
            yield folder / f"{label}_{each}"
            if word:
                yield folder / f"{label}{each[len(word) :]}"
            yield folder / label / each
    for word in words:
        rest = folder.name[len(word) :]
        if folder.name.lower().startswith(word) and (not rest or _FOLDER.fullmatch(f"label{rest}")):
            for each in stems:
                yield from (folder.parent / f"{label}{rest}" / each for label in _LABELS)


def label_name(stem: str) -> str | None:
    """What a file is called as a label, whoever its image is: ``"mask_liver"`` for ``ct_mask_liver``."""
    for pattern in (_SUFFIX, _INSIDE, _PREFIX):
        if (match := pattern.fullmatch(stem)) is not None:
            rest = match.groupdict().get("rest", "").strip("-_. ")
            return f"{_LABELS[match['word'].lower()]}{'_' * bool(rest)}{rest}"
    return None


def row_labels_of(data: Path) -> list[Path]:
    """Paths without ending at which one label for each row of an array may be: ``label_0`` of ``data_0``."""
    match = _NUMBER.fullmatch(data.name)
    number = (match["number"] or "") if match is not None else ""
    stems = (*(f"{word}{number}" for word in _ROW_LABELS), *(f"{data.name}_{word}" for word in _ROW_LABELS))
    return [data.parent / stem for stem in stems if stem != data.name]
