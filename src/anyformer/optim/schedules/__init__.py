"""How the learning rate changes over a run."""
