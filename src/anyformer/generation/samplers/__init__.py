"""Samplers, which pick the next token, and filters, which change the scores before."""
