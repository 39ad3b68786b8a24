"""Readers of source files: one module a source family. They read, and never write."""
