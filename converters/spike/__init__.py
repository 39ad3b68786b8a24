"""Spike cameras."""
