"""In which order samples are read."""
