"""The machine: processors, memory, sizes, progress."""
