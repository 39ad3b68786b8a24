"""What a store of each modality contains: one module a modality."""
