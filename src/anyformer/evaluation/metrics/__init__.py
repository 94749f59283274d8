"""Scores, one file a family; each comes with an interval and says how it was measured."""
