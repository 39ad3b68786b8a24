"""Side tables: columns beside a sealed store, attached by users or derived from the store itself."""
