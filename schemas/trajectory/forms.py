"""What the arrays of a trajectory store must be: steps, episodes that cut them, images as JPEG files."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.expected import BYTES, Forms
from unistore.schemas.forms import SAMPLES, Form
from unistore.schemas.trajectory.fields import EPISODES, JPEG_SUFFIX, STEPS

__all__ = ["FORMS"]

_VALID = "steps/next_valid"
_STEPS = (_VALID, 0)
_EPISODES = (SAMPLES, 0)


def _form(path: str, _paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    if group.endswith(JPEG_SUFFIX) and name in ("data", "offsets"):
        offsets = Form(dtypes=("int64",), row_shape=(), rows=(_VALID, 1), cuts=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if path == _VALID:
        return Form(dtypes=("bool",), row_shape=())
    if path in ("steps/terminated", "steps/truncated"):
        return Form(dtypes=("bool",), row_shape=(), rows=_STEPS)
    if path.startswith(f"{STEPS}/"):
        return Form(rows=_STEPS)
    if group == EPISODES and name in _KNOWN:
        return _KNOWN[name]
    if path.startswith(f"{EPISODES}/mask/"):
        return Form(dtypes=("bool",), row_shape=(), rows=_EPISODES)
    return Form(rows=_EPISODES) if path.startswith(f"{EPISODES}/") else Form()


_KNOWN = {
    "offsets": Form(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), cuts=_VALID),
    "source": Form(
        dtypes=("int32",), row_shape=(), rows=_EPISODES, below=("sources/path/offsets", -1), ascending=True
    ),
    "cut": Form(dtypes=("bool",), row_shape=(), rows=_EPISODES),
    "success": Form(row_shape=(), rows=_EPISODES),
}

FORMS = Forms(own=_form, main_rows=_VALID, text={EPISODES: (SAMPLES, 1)})
