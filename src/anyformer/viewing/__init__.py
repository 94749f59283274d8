"""Views into a trained model: attention weights and influences between tokens, on one page."""
