"""Export stores as files in the layout of their sources, or in another format."""
