"""Robot trajectories."""
