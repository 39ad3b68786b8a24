"""The contents of a store of plain arrays."""
