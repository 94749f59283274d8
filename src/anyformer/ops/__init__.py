"""Pure functions: a reference loop and a fast path for each operation."""
