"""Stores held against their manifest, their schema and their sources, and repaired from these."""
