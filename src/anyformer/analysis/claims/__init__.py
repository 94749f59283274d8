"""One file for each claim, or for claims that one measurement decides. A new claim is a new file and nothing else."""
