"""Views of episodes: frames of each camera, and curves of actions, rewards and observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from unistore.converters.formats.images import opencv
from unistore.converters.trajectory.restored_steps import StoredStepColumn, step_columns
from unistore.errors import InputError, StoreError
from unistore.plugin import IndexColumn, Measure, Preview, StoreView, View, ViewLimits, evenly, stride, whole
from unistore.schemas.trajectory.fields import EPISODES, STEPS
from unistore.system.types import AnyArray, Int64s, JsonObject

_CAMERAS = 4
_CURVES = 6
_OBSERVATION = "observation/"
_JOINTS = ("joint", "qpos", "state", "proprio")  # parts of names of columns that are shown first
_QUALITY = 85  # of JPEG files
_JPEG_RATIO = 12  # bytes of pixels in a byte of a JPEG file, about
_JPEG_HEAD = 600  # bytes of a JPEG file beside its pixels, about
# Steps that a curve is drawn through
_STEPS = 2000
_LINES = 16
# Numbers of a step, at most, in columns that curves are drawn of
_NUMBERS = 4096
# Steps in which ends are looked for
_FLAGS = 1 << 22
_REWARDS = 16 << 20


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return one episode: frames of its cameras, and curves of actions, rewards and observations."""
    lo, hi = (int(bound[0]) for bound in IndexColumn(store, f"{EPISODES}/offsets").ranges(np.array([sample])))
    columns = step_columns(store)
    arrays: dict[str, AnyArray] = {}
    observed = [one for one in columns if one.is_image and one.name.startswith(_OBSERVATION)]
    cameras: list[JsonObject] = []
    shown = observed[:_CAMERAS] if hi > lo else []
    read = 0
    for camera in shown:
        row_bytes = prod(camera.row_shape)
        step = stride(max(camera.row_shape[:2]), detail.side)
        # By the usual size of a JPEG file
        file_bytes = row_bytes // step**2 // _JPEG_RATIO + _JPEG_HEAD
        fitting = min(detail.read // row_bytes, detail.shown // (2 * file_bytes)) // len(shown)
        frames = evenly(lo, hi, max(2, min(detail.frames, fitting)))
        files, size = _files(store, camera, frames, detail.side)
        number = len(cameras)
        arrays[f"frames{number}"] = (frames - lo).astype(np.int32)
        arrays[f"offsets{number}"] = np.cumsum([0, *map(len, files)]).astype(np.int32)
        arrays[f"camera{number}"] = np.frombuffer(b"".join(files), np.uint8)
        cameras.append({"name": camera.name.removeprefix(_OBSERVATION), "shape": list(size)})
        read += len(frames) * row_bytes
    steps = evenly(lo, hi, _STEPS)
    arrays["steps"] = (steps - lo).astype(np.int32)
    curves: list[JsonObject] = []
    for column in _curve_columns(store, columns):
        values = store.array(f"{STEPS}/{column.name}").read_rows(steps).reshape(len(steps), -1)
        arrays[f"curve{len(curves)}"] = values[:, :_LINES].astype(np.float32)
        name = column.name.removeprefix(_OBSERVATION)
        curves.append({"name": name, "lines": min(_LINES, values.shape[1]), "of": values.shape[1]})
        read += values.nbytes
    frame_counts = [len(arrays[f"frames{number}"]) for number in range(len(cameras))]
    is_thinned = any(count < hi - lo for count in frame_counts)
    head = {
        "steps": hi - lo,
        "cameras": cameras,
        "curves": curves,
        "ends": _ends(store, lo, min(hi, lo + _FLAGS)),
        "note": f"{max(frame_counts)} of {hi - lo:,} frames" if is_thinned else "",
    }
    return View(widget="episode", title=f"{hi - lo:,} steps", head=head, arrays=arrays, read=read)


def measures(store: StoreView) -> Iterator[Measure]:
    """Yield steps of every episode, and the sum of its rewards."""
    offsets = whole(store, f"{EPISODES}/offsets")
    yield Measure(name="steps", values=np.diff(offsets), few=2, fix="leave them out: convert --exclude NAME")
    path = f"{STEPS}/reward"
    if store.has(path) and store.array(path).shape[0] * store.array(path).dtype.itemsize <= _REWARDS:
        rewards = store.array(path).read().astype(np.float64)
        sums = [float(rewards[start:stop].sum()) for start, stop in pairwise(offsets.tolist())]
        yield Measure(name="sum of rewards", values=np.array(sums))


PREVIEW = Preview(view=view, measures=measures)


def _curve_columns(store: StoreView, columns: Sequence[StoredStepColumn]) -> list[StoredStepColumn]:
    """Return actions, rewards, joints and other numbers of a step, in this order.

    Kept frames and ragged rows have no array of this name.
    """
    plain = [column for column in columns if not column.is_image and store.has(f"{STEPS}/{column.name}")]
    numeric = [one for one in plain if one.dtype.kind in "iuf" and prod(one.row_shape) <= _NUMBERS]

    def rank(column: StoredStepColumn) -> tuple[bool, bool, bool, str]:
        is_joint = any(word in column.name.lower() for word in _JOINTS)
        return column.name != "action", column.name != "reward", not is_joint, column.name

    return sorted(numeric, key=rank)[:_CURVES]


def _files(
    store: StoreView, camera: StoredStepColumn, steps: Int64s, side: int
) -> tuple[list[bytes], tuple[int, int]]:
    """Return frames as JPEG files, made smaller, and their height and width."""
    cv2 = opencv(f"{store.path}: a frame of {camera.name}")
    files = []
    size = (0, 0)
    for step in steps.tolist():
        try:
            frame = camera.read(step, step + 1)[0]
        except InputError as error:
            problem = error.problems[0]
            msg = f"{problem.location}: a frame {problem.message}; run 'unistore verify {store.path}'"
            raise StoreError(msg) from error
        shrink = stride(max(frame.shape[:2]), side)
        height, width = (max(1, length // shrink) for length in frame.shape[:2])
        if shrink > 1:
            frame = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
        _, file = cv2.imencode(".jpg", frame[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        files.append(file.tobytes())
        size = (height, width)
    return files, size


def _ends(store: StoreView, lo: int, hi: int) -> list[JsonObject]:
    """Return the steps at which the episode terminated or was cut."""
    ends = []
    for name in ("terminated", "truncated"):
        steps = np.flatnonzero(store.array(f"{STEPS}/{name}").read(lo, hi))[:_LINES].tolist()
        ends += [{"name": name, "step": step} for step in steps]
    return ends
