"""Pair images and their label files by names alone."""

# The name of a label adds a word to that of its image (``img0_seg`` of ``img0``, ``a_mask_1`` of ``a``), or
# replaces or inserts a word (``seg0`` of ``img0``, ``segmentation-3`` of ``volume-3``, ``a_seg_1`` of
# ``a_1``). Or it is the same name in a folder of labels, beside the folder of images (``labelsTr/case`` of
# ``imagesTr/case_0000``) or beside the images (``masks/a`` of ``a``).

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

_WORDS = {
    "seg": ("seg", "segs", "segmentation", "segmentations"),
    "mask": ("mask", "masks"),
    "label": ("label", "labels", "lbl", "gt"),
    "organs": ("organs",),
}
# Field name for each word in a file or folder name
_LABELS: dict[str, str] = {}
for _name, _words in _WORDS.items():
    _LABELS |= dict.fromkeys(_words, _name)
_IMAGE_WORDS = (
    *("image", "images", "img", "imgs", "imaging", "data"),
    *("volume", "volumes", "vol", "scan", "scans"),
)
_MODALITIES = ("t1", "t1ce", "t1gd", "t1c", "t1n", "t2", "t2w", "t2f", "flair")
# Suffixes of the files of an image's channels: ``case_0000`` of nnU-Net, ``case_t1`` of BraTS
_CHANNELS = (
    *(f"_{number:04d}" for number in range(10)),
    *map("".join, product("_-", _MODALITIES)),
)
_WORD = "|".join(sorted(_LABELS, key=len, reverse=True))
_SUFFIX = re.compile(rf"(?P<base>.*[^-_. ])[-_. ](?P<word>{_WORD})", re.IGNORECASE)
_PREFIX = re.compile(rf"(?P<word>{_WORD})(?P<rest>|[-_. ]?\d.*|[-_. ].+)", re.IGNORECASE)
_FOLDER = re.compile(rf"(?P<word>{_WORD})(?P<rest>|Tr|Ts|[-_. ].+)", re.IGNORECASE)
_INSIDE = re.compile(rf"(?P<base>.*[^-_. ])(?P<by>[-_. ])(?P<word>{_WORD})(?P<rest>[-_. ].+)", re.IGNORECASE)
_CHANNEL = re.compile(rf"(?P<base>.+)(_\d{{4}}|[-_]({'|'.join(_MODALITIES)}))")
_NUMBER = re.compile(r"(?P<base>.*?)(?P<number>[-_. ]?\d+)?")
_ROW_LABELS = ("label", "labels", "y", "Y", "target", "targets", "class", "classes")


def _field_of(match: re.Match[str]) -> str:
    """Return the field name for the word of a label in a name."""
    return _LABELS[match["word"].lower()]


class LabelMatch(NamedTuple):
    """The image of a label."""

    name: str  # field name of the label: "seg", "mask" or "label"
    images: tuple[str, ...]  # paths without suffix; several if the image has a file for each channel
    # Whether the names leave no doubt, as `img0_seg` and `labelsTr`; `image` and `label` may be any two
    # arrays.
    certain: bool


def may_be_label(path: str) -> bool:
    """Return whether `images_of_label` may find an image: a fast test that most files fail.

    It looks at the names of the file, of its folder and of the folder above, as pairing does.
    """
    parts = "/".join(path.rsplit(os.sep, 3)[-3:]).lower()
    return any(word in parts for word in _LABELS)


def images_of_label(
    label: str, exists: Callable[[str], bool], words: Sequence[str] = ()
) -> LabelMatch | None:
    """Return the image that a label file belongs to.

    Parameters
    ----------
    label : str
        Path of the label, without its ending.
    exists : callable
        Returns whether there is an image with this path, without an ending.
    words : sequence of str, default ()
        Further words for images and folders.

    Returns
    -------
    LabelMatch or None
        None: there is no such image.
    """
    if not may_be_label(label):
        return None
    for candidate in _candidates(label, (*_IMAGE_WORDS, *words)):
        images = [image for image in candidate.images if image != label and exists(image)]
        if images:
            return candidate._replace(images=tuple(dict.fromkeys(images)))
    return None


def _candidates(label: str, words: Sequence[str]) -> Iterator[LabelMatch]:
    """Yield possible images of a label, the likeliest first."""
    folder, stem = os.path.split(label)
    yield from _images_by_name(folder, stem, words)
    for images, name, certain in _image_folders(folder, words):
        yield from _files_or_channels(images, (stem,), name, certain=certain)
        for match in _images_by_name(images, stem, words):
            yield match._replace(certain=match.certain or certain)


def _images_by_name(folder: str, stem: str, words: Sequence[str]) -> Iterator[LabelMatch]:
    """Yield possible images in a folder, from the file name of the label without its word."""
    if (suffix := _SUFFIX.fullmatch(stem)) is not None:
        base = suffix["base"]
        name = _field_of(suffix)
        stems = (base, *(f"{base}{stem[len(base)]}{word}" for word in words))
        yield from _files_or_channels(folder, stems, name, certain=True)
    if (inside := _INSIDE.fullmatch(stem)) is not None:
        base = inside["base"]
        by = inside["by"]
        ending = inside["rest"]
        name = _field_of(inside)
        inner_stems = [f"{base}{by}{word}" for word in words]
        yield from _files_or_channels(
            folder, [f"{inner_stem}{ending}" for inner_stem in (base, *inner_stems)], name, certain=False
        )
        yield from _files_or_channels(folder, [base, *inner_stems], f"{name}_{ending[1:]}", certain=False)
    if (prefix := _PREFIX.fullmatch(stem)) is not None:
        word = prefix["word"].lower()
        ending = prefix["rest"]
        certain = bool(ending) and word.startswith("seg")
        stems = tuple(f"{label_word}{ending}" for label_word in words)
        yield from _files_or_channels(folder, stems, _LABELS[word], certain=certain)
        if ending and not ending.strip("-_. ").isdigit():
            yield from _files_or_channels(folder, (ending.lstrip("-_. "),), _LABELS[word], certain=True)


def _files_or_channels(
    folder: str, stems: Sequence[str], name: str, *, certain: bool
) -> Iterator[LabelMatch]:
    for stem in stems:
        image = f"{folder}{os.sep}{stem}"
        yield LabelMatch(name, (image,), certain)
        yield LabelMatch(name, tuple([f"{image}{channel}" for channel in _CHANNELS]), certain)


def _image_folders(folder: str, words: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield possible folders of the images for a folder of labels, the labels' field name, and certainty."""
    above, name = os.path.split(folder)
    match = _FOLDER.fullmatch(name)
    if match is not None:
        label = _field_of(match)
        ending = match["rest"]
        for word in words:
            yield f"{above}{os.sep}{word}{ending}", label, ending in ("Tr", "Ts")
        if not ending:
            yield above, label, True
        return
    top, above_name = os.path.split(above)
    match = _FOLDER.fullmatch(above_name)  # labels/train beside images/train
    if match is not None:
        for word in words:
            images = os.path.join(top, f"{word}{match['rest']}", name)  # noqa: PTH118  text is faster
            yield images, _field_of(match), False


def label_paths(image: str, words: Sequence[str] = ()) -> Iterator[str]:
    """Yield possible paths, without suffix, of the labels of an image. `images_of_label` checks a path."""
    folder, stem = os.path.split(image)
    above, folder_name = os.path.split(folder)
    channel = _CHANNEL.fullmatch(stem)
    stems = (stem,) if channel is None else (stem, channel["base"])
    words = sorted((*_IMAGE_WORDS, *words), key=len, reverse=True)
    word = next((word for word in words if stem.lower().startswith(word)), "")
    for name in stems:
        for label in _LABELS:
            for file in (f"{name}_{label}", f"{name}-{label}", f"{label}_{name}", f"{label}{os.sep}{name}"):
                yield f"{folder}{os.sep}{file}"
            if word:
                yield f"{folder}{os.sep}{label}{name[len(word) :]}"
    for word in words:
        ending = folder_name[len(word) :]
        if folder_name.lower().startswith(word) and (not ending or _FOLDER.fullmatch(f"label{ending}")):
            for name in stems:
                yield from (f"{above}{os.sep}{label}{ending}{os.sep}{name}" for label in _LABELS)


def is_label_folder(name: str) -> bool:
    """Return whether a folder is called as labels alone are: ``segmentations``."""
    return name.lower() in _LABELS


def label_name(stem: str) -> str | None:
    """Field name of a label file, whatever its image is: ``"mask_liver"`` for ``ct_mask_liver``."""
    for pattern in (_SUFFIX, _INSIDE, _PREFIX):
        if (match := pattern.fullmatch(stem)) is not None:
            ending = match.groupdict().get("rest", "").strip("-_. ")
            return f"{_field_of(match)}{'_' * bool(ending)}{ending}"
    return None


def row_label_paths(data: str) -> list[str]:
    """Possible paths, without suffix, of an array with a label for each row: ``label_0`` of ``data_0``."""
    folder, stem = os.path.split(data)
    match = _NUMBER.fullmatch(stem)
    number = (match["number"] or "") if match is not None else ""
    stems = [f"{word}{number}" for word in _ROW_LABELS]
    stems += [f"{stem}_{word}" for word in _ROW_LABELS]
    return [f"{folder}{os.sep}{name}" for name in stems if name != stem]
