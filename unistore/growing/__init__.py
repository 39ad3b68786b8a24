"""Versioned stores: stores that grow, by versions that list sealed stores."""
