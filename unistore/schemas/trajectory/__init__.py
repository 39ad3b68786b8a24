"""The contents of a store of robot trajectories."""
