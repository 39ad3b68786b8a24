"""Memory that batches are read into: shared segments, arenas over them, and the ring that reuses them."""
