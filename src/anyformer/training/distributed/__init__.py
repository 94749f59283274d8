"""Training on several ranks: the process group, DDP and FSDP."""
