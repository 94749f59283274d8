"""What works on each token by itself."""
