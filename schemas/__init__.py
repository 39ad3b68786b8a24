"""What a store of each family contains: one package a family, and what they share."""
