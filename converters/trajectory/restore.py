"""The files of trajectories as a store gives them back, to be compared with those of the source."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values, array_values
from unistore.converters.files.comparison import Restore, Restored, RestoredArray, RestoredFile
from unistore.converters.files.hdf5.attributes import attribute_texts, type_problem
from unistore.converters.scan import Scan
from unistore.converters.trajectory.columns import Feature
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.converters.trajectory.export import Run, frame_rows, is_resized, masks_of, runs
from unistore.schemas.indices import StoreView
from unistore.schemas.trajectory.fields import FINAL, JPEG_SUFFIX, NEXT, OBSERVATION, STEPS


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore every dataset of every episode; the scan says which dataset a column is."""
    all_runs = {number: parts for number, _, parts in runs(store)}
    texts = attribute_texts(store, len(scan.sources))
    swapped = store.attributes["options"]["colour"] == "swapped"

    def source(number: int) -> Restored:
        found, parts = scan.sources[number], all_runs[number]
        index: EpisodeIndex = found.detail.episodes
        arrays: list[RestoredArray] = []
        remarks: dict[str, str] = {}
        for run in parts:
            variant = index.variants[index.variant[run.first - parts[0].first]]
            for column, feature in variant.features.items():
                path, name = _path_of(store, column), run.path_of(feature.dataset)
                if path is not None and is_resized(store, path):
                    remarks[name] = "only resized"
                elif path is not None:
                    arrays.append(_restored(run, path, name, feature, swapped=swapped))
            for dataset in variant.values:
                remarks[run.path_of(dataset)] = "only as an attribute"
        for name, listed in masks_of(store, parts).items():
            episodes = array_values(np.array(sorted(listed), object))
            arrays.append(RestoredArray(f"mask/{name}", episodes, of_file=_sorted_names, may_differ=True))
        groups = {run.group for run in parts}
        in_texts = {"", *groups, *(group.rpartition("/")[0] for group in groups)}

        def is_in_text(path: str, item: Any, name: Any) -> bool:
            """Whether an attribute is among those of the file and its episodes."""
            try:
                return path in in_texts and type_problem(item.attrs.get_id(name).dtype) is None
            except (OSError, TypeError, ValueError):
                return False

        file = RestoredFile(
            found.path,
            arrays,
            remarks=remarks,
            attributes=texts[number],
            is_rewritten=is_in_text,
        )
        return Restored([file])

    return source


def _path_of(store: StoreView, column: str) -> str | None:
    """Array of the store with the values of a column; None if there is none."""
    if column.startswith("next_observation/"):
        key = column.removeprefix("next_observation/")
        paths = [f"{FINAL}/{key}"] if store.has(f"{OBSERVATION}/{key}") else []
        paths.append(f"{NEXT}/{key}")
    else:
        paths = [f"{STEPS}/{column}", f"{STEPS}/{column}{JPEG_SUFFIX}/data"]
    return next((path for path in paths if store.has(path)), None)


def _restored(run: Run, path: str, name: str, feature: Feature, *, swapped: bool) -> RestoredArray:
    if path.endswith(f"{JPEG_SUFFIX}/data"):
        frames = Values((run.steps,), np.dtype(object), lambda: frame_rows(run.frames(path)))
        return RestoredArray(name, frames, of_file=_without_padding if feature.kind == "padded" else None)
    values = run.values(path)
    if feature.is_encoded:
        return RestoredArray(name, values, of_file=partial(_decoded, swapped=swapped), decoder="OpenCV")
    return RestoredArray(name, values)


def _without_padding(rows: NDArray[np.uint8]) -> NDArray[Any]:
    frames = np.empty(len(rows), object)
    frames[:] = [row.tobytes().rstrip(b"\0") for row in rows]
    return frames


def _decoded(rows: NDArray[Any], *, swapped: bool) -> NDArray[Any]:
    """Decode the compressed frames of some rows."""
    import cv2

    images = []
    for row in rows:
        frame = np.frombuffer(bytes(row), np.uint8)
        png = frame[:4].tobytes() == b"\x89PNG"
        image = cv2.imdecode(frame, cv2.IMREAD_UNCHANGED if png else cv2.IMREAD_COLOR)
        if image is not None and image.ndim == 3 and not swapped:
            image = image[..., [2, 1, 0, *range(3, image.shape[2])]]
        images.append(np.asarray(image))
    return np.stack(images)


def _sorted_names(names: NDArray[Any]) -> NDArray[Any]:
    texts = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in names]
    return np.array(sorted(texts), object)
