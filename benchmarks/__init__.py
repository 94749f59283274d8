"""Measurements: each file is a command that checks its results before it times them, and prints one line of JSON."""
