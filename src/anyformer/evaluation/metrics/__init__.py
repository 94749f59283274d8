"""Metrics, one file a family; each score has an interval and a signature."""
