"""What a store of this family holds."""
