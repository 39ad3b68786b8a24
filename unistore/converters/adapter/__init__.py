"""How the core runs what `unistore.converters.family` describes."""
