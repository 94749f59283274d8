"""Checks of data, one file each."""
