"""Ready adapters for foreign types, found by qualified name, never imported."""
