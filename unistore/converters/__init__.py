"""Readers of source files: one package a family, and what they share. They read, and never write."""
