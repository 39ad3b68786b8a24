"""What the arrays of a trajectory store must be: steps, episodes, images as JPEG files."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.array_spec import SAMPLES, ArraySpec
from unistore.schemas.array_specs import BYTES, ArraySpecs
from unistore.schemas.trajectory.fields import EPISODES, JPEG_SUFFIX, STEPS

_VALID = "steps/next_valid"
_STEPS = (_VALID, 0)
_EPISODES = (SAMPLES, 0)


def _spec(path: str, _paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if group.endswith(JPEG_SUFFIX) and name in ("data", "offsets"):
        offsets = ArraySpec(dtypes=("int64",), row_shape=(), rows=(_VALID, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if path.startswith(f"{STEPS}/"):
        return ArraySpec(rows=_STEPS)
    if path in _OPTIONAL:
        return _OPTIONAL[path]
    if path.startswith(f"{EPISODES}/mask/"):
        return ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES)
    return ArraySpec(rows=_EPISODES) if path.startswith(f"{EPISODES}/") else ArraySpec()


_FLAG = ArraySpec(dtypes=("bool",), row_shape=(), rows=_STEPS)
_OPTIONAL = {
    f"{EPISODES}/source": ArraySpec(
        dtypes=("int32",), row_shape=(), rows=_EPISODES, indexes=("sources/path/offsets", -1), ascending=True
    ),
    f"{EPISODES}/cut": ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES),
    f"{EPISODES}/success": ArraySpec(row_shape=(), rows=_EPISODES),
}

SPECS = ArraySpecs(
    arrays={
        _VALID: ArraySpec(dtypes=("bool",), row_shape=()),
        "steps/terminated": _FLAG,
        "steps/truncated": _FLAG,
        f"{EPISODES}/offsets": ArraySpec(
            dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=_VALID
        ),
    },
    others=_spec,
    main_rows=_VALID,
    text={EPISODES: (SAMPLES, 1)},
)
