"""How the core runs what `unistore.converters.plugin` describes."""
