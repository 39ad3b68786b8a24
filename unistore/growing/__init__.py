"""Stores that grow: versions that list sealed stores."""
