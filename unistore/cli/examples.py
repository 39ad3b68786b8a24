"""Examples at the end of each family's help. Lines stay below 80 columns, where terminals begin to wrap."""

from __future__ import annotations

__all__ = ["CT", "POINT_CLOUD", "ROWS", "SPIKE", "TRAJECTORY"]

ROWS = """\b
Examples:
  unistore convert rows arrays/ train.zarr
  unistore convert rows a.h5 b.h5 train.zarr --split train=0.9,val=0.1
  unistore convert rows a.npz train.zarr --map image=x --map label=y
"""
POINT_CLOUD = """\b
Examples:
  unistore convert point-cloud clouds/ clouds.zarr
  unistore convert point-cloud clouds/ clouds.zarr --voxel-size 0.5
  unistore convert point-cloud scan.h5 scan.zarr --segment window:50
  unistore convert point-cloud scan.h5 scan.zarr --map x=East --map y=North
"""
CT = """\b
Examples:
  unistore convert ct volumes/ ct.zarr
  unistore convert ct volumes/ ct.zarr --window lung --window mine:400:50
  unistore convert ct processed/ ct.zarr --resolution 512 --sparse mask
"""
SPIKE = """\b
Examples:
  unistore convert spike recordings/ spikes.zarr --voxels 5,10
  unistore convert spike a.dat b.dat spikes.zarr --height 250 --width 400
  unistore convert spike recordings/ spikes.zarr --frames keep
"""
TRAJECTORY = """\b
Examples:
  unistore convert trajectory demos/ demos.zarr
  unistore convert trajectory demo.hdf5 demo.zarr --image-size 224
  unistore convert trajectory aloha/ aloha.zarr --images keep
"""
