"""The contents of a store of each family: one package per family, and shared definitions."""
