"""Check stores with their manifest, schema and sources, and repair them from their sources."""
