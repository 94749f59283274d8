"""One file for each way to rank what is pruned. A new way is a new file and nothing else."""
