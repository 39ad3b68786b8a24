"""Plain arrays that share axis 0."""
