"""What a store of each family contains: one package per family, and what they share."""
