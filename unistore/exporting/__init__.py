"""Exports stores as files in the main layout of their source family."""
