"""Reading ``.npy`` and ``.npz`` files."""
