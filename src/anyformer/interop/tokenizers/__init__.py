"""Tokenizers that are read from the files of foreign models."""
