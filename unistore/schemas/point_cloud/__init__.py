"""The contents of a store of point clouds."""
