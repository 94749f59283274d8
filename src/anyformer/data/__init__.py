"""From a user's file to a batch: records, tokens, order, batches."""
