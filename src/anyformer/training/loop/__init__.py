"""The training loop: batches, loss, updates, budgets."""
