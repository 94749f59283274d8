"""What is done with the facts of a run: each observer is a callable that is given every step."""
