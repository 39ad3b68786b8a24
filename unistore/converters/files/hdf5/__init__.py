"""Reading HDF5 files."""
