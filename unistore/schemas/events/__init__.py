"""The contents of a store of recordings of event cameras."""
