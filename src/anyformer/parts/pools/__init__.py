"""How a sequence becomes one vector."""
