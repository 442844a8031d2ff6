"""`python -m tensorpack check pkg.mod`: every payload and every refusal of modules."""
