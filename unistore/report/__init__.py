"""Describe a path: a store, an unfinished conversion, sources, or something else."""
