"""Kinds of samples, one module each: frozen dataclasses of options."""
