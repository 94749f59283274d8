"""Objectives: what a model is trained to do, as values."""
