"""What models do and cost, measured: the claims of the lectures as experiments."""
