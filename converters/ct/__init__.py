"""CT volumes."""
