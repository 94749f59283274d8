"""One file for each kind of unit that pruning removes. A new kind is a new file and nothing else."""
