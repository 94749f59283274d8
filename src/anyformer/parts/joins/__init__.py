"""How the output of a branch is combined with the stream."""
