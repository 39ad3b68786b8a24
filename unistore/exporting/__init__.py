"""Stores given back as files of their source family's main layout, so that nobody is locked in."""
