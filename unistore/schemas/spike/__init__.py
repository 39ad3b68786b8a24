"""The contents of a store of spike-camera recordings."""
