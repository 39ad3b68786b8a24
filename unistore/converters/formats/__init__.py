"""Formats that every family can use: one file each, and what several of them share."""
