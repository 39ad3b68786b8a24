"""Samples of sealed stores: Dataset, kinds of samples, collation."""
