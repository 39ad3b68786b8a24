"""The contents of a store of CT volumes."""
