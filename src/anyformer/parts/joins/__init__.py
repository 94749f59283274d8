"""How a branch meets the stream."""
