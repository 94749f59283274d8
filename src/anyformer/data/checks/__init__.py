"""The doctor: what may be wrong with data, one file per check."""
