"""Columns of every form in every table, as a package of somebody else declares them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unistore.plugin import Chosen, Claim, Column, Cut, Family, FileSummary, OpenFile, Schema, no, sure

KINDS = ("low", "high")
TEXT = Column(ragged=True)


@dataclass(frozen=True, kw_only=True)
class Every(Family):
    """Frames in clips: HDF5 with x, label, mode, marks, and clips of 2 frames."""

    name = "every"
    summary = "Frames in clips: .h5."
    formats = ("hdf5",)
    schema = Schema(
        table="frames",
        columns={
            "x": Column(kinds="f"),
            "label_utf8": TEXT,
            "mode": Column(classes=KINDS),
            "marks_ragged": Column(kinds="i", ragged=True),
        },
        samples="clips",
        per_sample={
            "title_utf8": TEXT,
            "kind": Column(classes=KINDS),
            "spans_ragged": Column(kinds="f", ragged=True),
        },
        per_source={
            "site_utf8": TEXT,
            "grade": Column(classes=KINDS),
            "bounds_ragged": Column(ragged=True),
        },
        tables={
            "peaks": {
                "at": Column(dtype="int64"),
                "word_utf8": Column(ragged=True, dtype="uint8"),
                "kind": Column(classes=KINDS, dtype="uint8"),
                "near_ragged": Column(ragged=True, dtype="float32"),
            }
        },
        per={"peaks": "sample"},
    )

    def match(self, head: FileSummary) -> Claim:
        return sure("holds marks") if "marks" in head.opened.objects else no("holds no marks")

    def choose(self, head: FileSummary) -> Chosen:
        metadata = {name: head.opened.group_metadata()[name] for name in ("site", "grade", "bounds")}
        return super().choose(head)._replace(metadata=metadata)

    def cut(self, opened: OpenFile) -> Iterator[Cut]:
        x = opened.arrays["x"][:]
        for first in range(0, len(x), 2):
            own = x[first : first + 2]
            kind = KINDS[int(own[0] > 0)]
            numbers = {"title_utf8": f"clip {first}", "kind": kind, "spans_ragged": own.tolist()}
            yield Cut(len(own), numbers, {"peaks": int((own > 0).sum())})

    def derive(self, opened: OpenFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
        x = opened.arrays["x"][:]
        at = np.flatnonzero(x > 0)
        near = [x[max(0, peak - 1) : peak + 2].astype("f4") for peak in at]
        words = ["é" * int(peak) for peak in at]
        kinds = [KINDS[peak % 2] for peak in at]
        yield "peaks", {"at": at, "word_utf8": words, "kind": kinds, "near_ragged": near}


@dataclass(frozen=True, kw_only=True)
class Boxes(Family):
    """Images with boxes: HDF5 with image, count, and a row a box."""

    name = "boxes"
    summary = "Images with boxes: .h5."
    formats = ("hdf5",)
    schema = Schema(
        table="images",
        columns={"image": Column(kinds="u", axes=("row", "column")), "count": Column(kinds="i")},
        tables={"boxes": {"xyxy": Column(kinds="f", axes=("corner",)), "name_utf8": TEXT}},
        per={"boxes": "sample"},
    )

    def cut(self, opened: OpenFile) -> Iterator[Cut]:
        for count in opened.arrays["count"][:].tolist():
            yield Cut(1, tables={"boxes": count})
