"""Linear time-invariant state spaces."""
