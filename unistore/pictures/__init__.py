"""Pictures of samples, and the HTML in which they are shown."""
