"""How a stream is normalised."""
