"""Added columns: arrays in a folder next to a sealed store, from the user or computed from the store."""
