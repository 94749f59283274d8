"""How fresh weights are drawn."""
