"""Parts that mix tokens."""
