"""Using a trained model: generate, fill, classify, embed, search."""
