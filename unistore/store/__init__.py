"""The sealed store: its names, its manifest and seal, and how it is read."""
