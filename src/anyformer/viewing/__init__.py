"""Looking inside a model: what each token takes from the others, on one page."""
