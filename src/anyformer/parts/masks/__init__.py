"""Which tokens see each other."""
