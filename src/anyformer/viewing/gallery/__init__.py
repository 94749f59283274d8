"""Pictures of kinds, measured on small examples: masks, positions, norms and parts that mix tokens."""
