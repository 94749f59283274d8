"""Models of other libraries: their folders, and the mappings between their configs and tensors and ours."""
