"""Parts that act on each token by itself."""
