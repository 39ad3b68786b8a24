"""Robot trajectories."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

FAMILY = FamilyRecord(
    name="trajectory",
    summary="Robot trajectories in HDF5: robomimic, ACT, D4RL, flat.",
    description="Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite, ACT/ALOHA, D4RL, flat.",
    examples=(
        "unistore convert trajectory demos/ demos.zarr",
        "unistore convert trajectory demo.hdf5 demo.zarr --image-size 224",
        "unistore convert trajectory aloha/ aloha.zarr --images keep",
    ),
    options="unistore.converters.trajectory.options:TrajectoryOptions",
    converter="unistore.converters.trajectory.converter:converter",
    specs="unistore.schemas.trajectory.fields:SPECS",
    rules="unistore.schemas.trajectory.rules:RULES",
    export="unistore.converters.trajectory.stored:files",
    export_to={
        "lerobot": "unistore.converters.trajectory.lerobot_export:files",
        "robomimic": "unistore.converters.trajectory.robomimic_export:files",
    },
    alike={name: f"unistore.converters.trajectory.alike:{name}" for name in ("arrays", "column", "missing")},
    restore="unistore.converters.trajectory.stored:restore",
    kind="unistore.data.kinds.named:transitions",
    preview="unistore.converters.trajectory.preview:PREVIEW",
    other_kinds=("unistore.Windows(history=2, horizon=8)",),
    batch_size=64,
)
