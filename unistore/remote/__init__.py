"""Stores in object stores: URLs, reading with coalesced ranges, a local shard cache, destinations."""
