"""How good a trained model is: metrics with intervals, and which of them an objective needs."""
