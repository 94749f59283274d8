"""Recipes: sections, TOML layers, and how a target becomes a complete recipe."""
