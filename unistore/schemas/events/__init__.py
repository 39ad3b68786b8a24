"""What a store of recordings of event cameras holds."""
