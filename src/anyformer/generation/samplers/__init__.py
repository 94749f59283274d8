"""How the next word is chosen, and what may change the scores before."""
