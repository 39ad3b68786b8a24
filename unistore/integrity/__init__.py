"""Check stores against their manifest, schema and sources, and repair them from the sources."""
