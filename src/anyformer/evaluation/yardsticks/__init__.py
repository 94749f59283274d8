"""Yardsticks: simple methods for the same task, measured on the same records by the same metrics."""
